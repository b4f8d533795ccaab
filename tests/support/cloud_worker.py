"""Ask a cloud's own parser: `cloud_worker.py FUNCTION FILE...` prints a line of JSON for each file.

Runs in .venv.clouds, which `make cloud-parsers` makes. The line holds the file as it was understood, or the error.
"""

import json
import sys
from pathlib import Path


def skypilot(path):
    import sky

    task = sky.Task.from_yaml(path)
    (resources,) = task.resources
    stop = resources.autostop_config
    return {
        "nodes": task.num_nodes, "setup": task.setup, "run": task.run, "workdir": task.workdir,
        "buckets": {place: store.source for place, store in task.storage_mounts.items()},
        "machine": [str(resources.cloud), resources.region, resources.instance_type, resources.accelerators],
        "use_spot": resources.use_spot, "disk_size": resources.disk_size,
        "autostop": stop and [stop.idle_minutes, stop.down],
    }  # fmt: skip


def parallelcluster(path):
    import yaml
    from pcluster.schemas.cluster_schema import ClusterSchema

    cluster = ClusterSchema(cluster_name="twins").load(yaml.safe_load(Path(path).read_text()))
    queues = cluster.scheduling.queues
    return {
        "scheduler": cluster.scheduling.scheduler,
        "queues": {queue.name: [compute.instance_types for compute in queue.compute_resources] for queue in queues},
        "shared": [storage.mount_dir for storage in cluster.shared_storage],
    }


parse = {"skypilot": skypilot, "parallelcluster": parallelcluster}[sys.argv[1]]
for file in sys.argv[2:]:
    try:
        answer = parse(file)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("answer " + json.dumps(answer))
