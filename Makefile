# One command to run, one to check. The venv stands first in PATH, because DVC runs its stages' `python` from there.
VENV := .venv
SHELL := /bin/bash
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Tests of a file in one process, files in their order: by itself xdist starts those with most tests first, and long files with few come last.
AT_ONCE := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help install run ablation up worker down status params preflight repro test test-faults test-browser screenshots lint types imports check promote rollback push pull accept gc mlflow sync clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -d $(VENV) || python3 -m venv $(VENV)
	@echo "installing the pinned stack into $(VENV) (a few minutes, once)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## make the virtual environment

run: install  ## the end-to-end flow: make run [PRESET=cifar10] [DATA=FOLDER] [NAME=] [IN_PLACE=1]
	@python -m flows.demo $(if $(PRESET),--preset $(PRESET)) $(if $(DATA),--data $(DATA)) $(if $(NAME),--name $(NAME)) $(if $(IN_PLACE),--in-place)

ablation: install  ## a sweep of params/ablations: make ablation NAME=miniature [DRY=1] [OTHER_CODE=take|renew]
	@python -m flows.ablate $(NAME) $(if $(DRY),--dry) $(if $(OTHER_CODE),--other-code $(OTHER_CODE))

params: install  ## write a preset into params/: make params PRESET=cifar10
	@python -m flows.presets $(PRESET)

preflight: install  ## what pretraining would cost: make preflight [PRESET=vit_b16] [DEVICE='h100 a100-80']
	@python -m $(if $(PRESET),flows.costs $(PRESET),components.preflight) $(if $(DEVICE),--device $(DEVICE))

repro: install  ## the same stages without Prefect
	dvc repro

up: install  ## Prefect's UI on 127.0.0.1:4200, MLflow's on 127.0.0.1:5000, the deployments: make up [PREFECT_PORT=] [MLFLOW_PORT=] [RUNS=2]
	@python -m flows.services up

worker: install  ## take the runs of a work pool of PREFECT_API_URL's server: make worker [RUNS=2]
	@test -n "$$PREFECT_API_URL" || { echo "error: PREFECT_API_URL is not set; it must name a Prefect server, as in http://127.0.0.1:4200/api" >&2; exit 2; }
	@set -a; . ./.env.example; set +a; \
	{ prefect work-pool inspect stop >/dev/null 2>&1 || prefect work-pool create stop --type process; } && \
	prefect --no-prompt deploy --all && \
	PREFECT_WORKER_QUERY_SECONDS=2 prefect worker start --pool stop --type process --limit $(or $(RUNS),2)

down:  ## end what make up started
	@python -m flows.services down

status:  ## what of it runs, and where
	@python -m flows.services status

mlflow: install  ## MLflow's UI alone, on 127.0.0.1:5000
	MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
		mlflow ui --backend-store-uri sqlite:///$(CURDIR)/mlflow.db --host 127.0.0.1 --port 5000

promote: install  ## a finished run's encoder becomes the champion: make promote RUN=NAME [METRICS=A,B] [TOLERANCE=0.5] [FORCE='why'] [PUSH=0]
	@python -m flows.promote $(RUN) $(if $(METRICS),--metrics $(METRICS)) $(if $(TOLERANCE),--tolerance $(TOLERANCE)) \
		$(if $(FORCE),--force "$(FORCE)") $(if $(filter 0,$(PUSH)),--no-push)

rollback: install  ## the champion before becomes champion again
	@python -m flows.promote --rollback

push: install  ## data, models and run cache of dvc.lock to DVC's default remote
	dvc push --run-cache

pull: install  ## the same from there
	dvc pull --run-cache

sync: install  ## send MLflow what it has not got while it was away
	@python -m components.tracking.sync

accept: install  ## say that a code edit changes no result: make accept STAGE=pretrain
	dvc commit --force $(STAGE)

gc: install  ## what no kept run needs: make gc [KEEP=20] [REMOVE=RUN] shows it, with APPLY=1 it goes
	@python -m flows.gc $(if $(KEEP),--keep $(KEEP)) $(foreach run,$(REMOVE),--remove $(run)) $(if $(APPLY),--apply)

lint: install  ## style
	ruff check . && ruff format --check .

types: install  ## mypy strict
	mypy

imports: install  ## which module may import which
	lint-imports

test: install  ## the whole suite
	python -m pytest -m "not faults and not browser" $(AT_ONCE) --durations=12

test-faults: install  ## long tests that kill processes, start whole stacks or watch the network
	python -m pytest -m faults $(AT_ONCE) --durations=12

test-browser: install  ## a person's way through Prefect's and MLflow's pages; needs chromium
	python -m pytest -m browser

screenshots: install  ## the pictures of the README, made by the same test
	mkdir -p docs/images && STOP_SCREENSHOTS=$(CURDIR)/docs/images python -m pytest -m browser

check: lint types imports test  ## lint, types, imports and test

clean:  ## remove resume state, logs and caches, but no data, model or run
	find logs -mindepth 1 -maxdepth 1 ! -name tracking ! -name services -exec rm -rf {} + 2>/dev/null || true  # what MLflow has still to get stays
	rm -rf work .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
