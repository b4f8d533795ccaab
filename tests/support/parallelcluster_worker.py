"""Ask ParallelCluster's own schema about clusters: `parallelcluster_worker.py FILE...` prints a line of JSON for each.

Runs in .venv.clouds, which `make cloud-parsers` makes.
"""

import json
import sys
from pathlib import Path

import yaml
from pcluster.schemas.cluster_schema import ClusterSchema

for path in sys.argv[1:]:
    try:
        cluster = ClusterSchema(cluster_name="twins").load(yaml.safe_load(Path(path).read_text()))
        answer = {
            "scheduler": cluster.scheduling.scheduler,
            "queues": {
                queue.name: [compute.instance_types for compute in queue.compute_resources]
                for queue in cluster.scheduling.queues
            },
            "shared": [storage.mount_dir for storage in cluster.shared_storage],
        }
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("answer " + json.dumps(answer))
