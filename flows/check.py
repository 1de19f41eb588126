"""The first task of a run: everything that can be known to be wrong, before any stage starts; then the chosen values are written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Completed, Failed

from components.stage import contract, read_yaml, validate
from flows import artifacts, costs, form, graph, preflight, slots


@task(name="check", task_run_name="check", cache_policy=NO_CACHE, persist_result=False)
def check(root: Path, targets: Sequence[str], parallel: int, sections: Mapping[str, Any]) -> State[Any]:
    """Completed with the stages to run, in their order, once params/ holds the values of `sections`; else Failed.

    `sections` are those of the form; a stage that has none keeps the values of its file. A failure's message tells every
    fault of every section at once, and leaves the files as they were. What pretraining will cost is left on the run's page.
    """
    try:
        preflight.check_parallel(parallel)
        params = chosen(root, sections)
        preflight.check_raw(root, params.get("prepare", {"datasets": {}}))
        changed, nodes = preflight.settle(root, params, targets, slots.check)
    except ValueError as error:
        return Failed(message=str(error), data=error)
    if any(node.word == "pretrain" for node in nodes):
        artifacts.page("preflight", costs.page(root, params), "What pretraining costs")
    return Completed(message=f"written: {', '.join(changed)}" if changed else "params/ holds these values", data=nodes)


def chosen(root: Path, sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Params by stage word from the sections, and from the files for stages without one, validated.

    Values pass through the contracts, so that a browser's 1 is the 1.0 of the file. Raises one ValueError with all faults.
    """
    words, faults = graph.words(root), list[str]()
    params: dict[str, dict[str, Any]] = {}
    for word in [*words, *(word for word, given in sections.items() if given is not None and word not in words)]:
        try:
            if word not in words:
                raise ValueError(f"section is {word!r}, which is no stage of dvc.yaml; they are: {', '.join(words)}")
            given = sections.get(word)
            values = read_yaml(root / "params" / f"{word}.yaml") if given is None else form.to_params(word, given)
            where = f"params/{word}.yaml" if given is None else word
            params[word] = validate(contract(word).params, values, where).model_dump()
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("\n".join(faults))
    return params
