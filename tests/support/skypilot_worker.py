"""Ask SkyPilot's own parser about tasks: `skypilot_worker.py FILE...` prints a line of JSON for each.

Runs in .venv.clouds, which `make cloud-parsers` makes. The line holds the task as SkyPilot understood it, or its error.
"""

import json
import sys

import sky

for path in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(path)
        (resources,) = task.resources
        answer = {
            "nodes": task.num_nodes,
            "setup": task.setup,
            "run": task.run,
            "workdir": task.workdir,
            "buckets": {place: store.source for place, store in task.storage_mounts.items()},
            "cloud": str(resources.cloud),
            "region": resources.region,
            "instance_type": resources.instance_type,
            "accelerators": resources.accelerators,
            "use_spot": resources.use_spot,
            "disk_size": resources.disk_size,
            "image": resources.image_id,
            "autostop": resources.autostop_config
            and {
                "idle_minutes": resources.autostop_config.idle_minutes,
                "down": resources.autostop_config.down,
            },
        }
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("answer " + json.dumps(answer))
