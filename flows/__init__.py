"""When and where the stages of dvc.yaml run: order, retries, cancelling, and what a person sees meanwhile.

Importing it switches off everything that would phone home, here and in every process started from here; a value that is
already in the environment is kept.
"""

import os

OFFLINE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # The pages of the V2 UI ask amplitude.com for its settings, whatever the switch above says (3.9.1); those of V1 ask nobody.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "DVC_NO_ANALYTICS": "1",
    "DVC_STUDIO_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}

# The leases of concurrency limits outlive Prefect's server, which would otherwise forget whose slots it still counts as taken.
LEASES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}

for _name, _value in (OFFLINE | LEASES).items():  # before prefect is imported: it reads its settings then
    os.environ.setdefault(_name, _value)
