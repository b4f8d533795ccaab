"""The cluster of the how-to for Slurm on AWS: ParallelCluster's own schema takes it, and the site fits it."""

import pytest
import yaml
from cloud_parsers import ask

from launch.sites.site_files import SITE_FILES, read_launch_site

CLUSTER = SITE_FILES / "aws-parallelcluster.yaml"


@pytest.mark.ci
def test_parallelcluster_takes_the_cluster_that_the_site_is_for(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({**yaml.safe_load(CLUSTER.read_text()), "Queues": []}))
    variables = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    found, refused = ask("parallelcluster_worker.py", [CLUSTER, wrong], home=tmp_path, variables=variables)
    site = read_launch_site("aws-parallelcluster")
    types = [site.machines[node].instance_type for node in site.nodes]
    assert found == {"scheduler": "slurm", "queues": {site.slurm.partition: [types]}, "shared": ["/shared"]}
    assert "Unknown field" in refused["error"]
