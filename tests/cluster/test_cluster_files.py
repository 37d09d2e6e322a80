"""cluster.yaml, cluster-aws.yaml and rayjob.yaml against Ray's own code, and AWS's side of them on an emulator.

No test accesses a cloud: moto emulates AWS. It cannot check whether AWS has spot instances available.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from multicse.trainers.engine.cluster import AUTOSCALING
from tests.cluster.servers import S3Server
from tests.conftest import ROOT

VERSION = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line and line[0] != "#"
)


@pytest.fixture
def cluster() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text()))


@pytest.fixture
def whole() -> dict[str, Any]:
    """Return cluster.yaml with the nodes of eight GPUs enabled by the command that it documents."""
    text = (ROOT / "cluster.yaml").read_text()
    assert "`sed -i 's/^#8 //' cluster.yaml`" in text
    return dict(yaml.safe_load(re.sub("^#8 ", "", text, flags=re.MULTILINE)))


@pytest.fixture
def rayjob() -> dict[str, Any]:
    (job,) = [part for part in yaml.safe_load_all((ROOT / "rayjob.yaml").read_text()) if part["kind"] == "RayJob"]
    return dict(job)


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster as prepared and validated by `ray up`."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    ready = prepare_config(copy.deepcopy(config))
    validate_config(ready)
    return dict(ready)


def of_kubernetes(job: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster as read by KubeRay's autoscaler, validated against the same schema."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    resource = {"metadata": {"name": "multicse", "namespace": "default"}, "spec": job["spec"]["rayClusterSpec"]}
    return dict(_derive_autoscaling_config_from_ray_cr(resource))


# ------------------------------------------------------------------------------------------------------- cluster.yaml


def test_ray_accepts_the_cluster(cluster: dict[str, Any], whole: dict[str, Any]) -> None:
    assert prepared(cluster)["available_node_types"].keys() == {"head", "gpu"}
    ready = prepared(whole)
    types = ready["available_node_types"]
    head, gpu, gpu8 = (types.pop(name) for name in (ready["head_node_type"], "gpu", "gpu8"))
    assert not types, "contains a default of Ray"
    workers = (gpu, gpu8)
    most = {most: sum(t["resources"][kind] * t["max_workers"] for t in workers) for kind, most in AUTOSCALING.items()}
    assert head["resources"] == {"CPU": 0, **most}, "the checks of a run read the maximum size of the cluster"
    assert (gpu["min_workers"], gpu["max_workers"]) == (0, ready["max_workers"])
    assert ready["provider"]["cache_stopped_nodes"] is False, "a stopped node costs its disk"


def test_ray_start_understands_its_options(cluster: dict[str, Any]) -> None:
    """Parsed with click; RAY_AUTH_MODE has the same value everywhere."""
    from ray.scripts.scripts import start

    found = []
    for kind in ("head_start_ray_commands", "worker_start_ray_commands"):
        (line,) = [command for command in cluster[kind] if "ray start" in command]
        before, _, after = line.partition("ray start ")
        assert "RAY_AUTH_MODE=disabled" in before
        found.append(start.make_context("start", shlex.split(after)).params)
    head, worker = found
    assert head["head"] and head["dashboard_host"] == "127.0.0.1" and head["autoscaling_config"]
    assert worker["address"] == f"$RAY_HEAD_IP:{head['port']}"


def test_nccl_and_gloo_use_the_interface_of_the_default_route(cluster: dict[str, Any], rayjob: dict[str, Any]) -> None:
    """The command is run up to `ray start`; the kernel reports the interface of packets to the outside."""
    (line,) = [command for command in cluster["worker_start_ray_commands"] if "ray start" in command]
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "LD_LIBRARY_PATH")
    script = line.partition("RAY_AUTH_MODE")[0] + " ".join(["echo", *(f'"${name}"' for name in names)])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": "/own"}
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no default route")
        mine = probe.getsockname()[0]
    interface = next(name for name, all_of in psutil.net_if_addrs().items() if mine in [one.address for one in all_of])
    found = done.stdout.split()
    assert found[:3] == [interface, f"={interface}", "efa"] and found[3].endswith("/opt/amazon/efa/lib:/own"), done.stderr
    (environment,) = [part["data"] for part in yaml.safe_load_all((ROOT / "rayjob.yaml").read_text()) if "data" in part]
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")


def test_nodes_with_eight_gpus_have_memory_for_nccl_and_its_plugin(whole: dict[str, Any], rayjob: dict[str, Any]) -> None:
    """Docker options and setup are resolved by Ray's own code; shared memory is larger than Ray's object store."""
    from ray._private.ray_constants import DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES
    from ray.autoscaler._private.util import prepare_config

    kind = prepare_config(copy.deepcopy(whole))["available_node_types"]["gpu8"]
    options = kind["docker"]["worker_run_options"]
    assert {"--device=/dev/infiniband", "--ulimit memlock=-1:-1"} <= {*options}
    (size,) = [option.partition("=")[2] for option in options if option.startswith("--shm-size")]
    assert int(size.removesuffix("g")) << 30 > DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES
    libraries, plugin = kind["worker_setup_commands"]
    assert [libraries] == whole["setup_commands"] and "--skip-kmod" in plugin
    (group,) = [one for one in rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"] if one["groupName"] == "gpu8"]
    (volume,) = group["template"]["spec"]["volumes"]
    assert int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30 > DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES


def test_the_setup_commands_find_their_files(cluster: dict[str, Any], tmp_path: Path) -> None:
    """They run unchanged in a home with the mounted files. This environment has all packages, so nothing is downloaded."""
    home = tmp_path / "home"
    for remote, local in cluster["file_mounts"].items():
        target = home / Path(remote).relative_to("/home/ray")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / local).read_bytes())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(home), "PATH": path, "PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1"}
    for command in cluster["setup_commands"]:
        done = subprocess.run(["bash", "-e", "-c", command], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    wanted = (home / "multicse" / "requirements.txt").read_text().split()
    for part in ("torch", "ray[data,train,tune]", "ray[default]", "s3fs", "boto3", "mlflow", "sentence-transformers"):
        assert any(line.split(">")[0] == part for line in wanted), part


# --------------------------------------------------------------------------------------------------------- rayjob.yaml


def test_kuberay_reads_the_same_cluster(whole: dict[str, Any], rayjob: dict[str, Any]) -> None:
    there, here = of_kubernetes(rayjob), prepared(whole)
    head, other = there["available_node_types"]["headgroup"], here["available_node_types"]
    assert {name: count for name, count in head["resources"].items() if name != "memory"} == other["head"]["resources"]
    for name in ("gpu", "gpu8"):
        kind = there["available_node_types"][name]
        assert {what: kind["resources"][what] for what in ("CPU", "GPU")} == other[name]["resources"]
        for most in ("min_workers", "max_workers"):
            assert kind[most] == other[name][most]
    for setting in ("idle_timeout_minutes", "max_workers"):
        assert there[setting] == here[setting]


def test_versions_of_image_ray_and_python_are_equal_everywhere(cluster: dict[str, Any], rayjob: dict[str, Any]) -> None:
    image = cluster["docker"]["image"]
    name, tag = image.split(":")
    assert name == "rayproject/ray"
    version, python, cuda = tag.split("-")
    assert version == VERSION["ray"] == rayjob["spec"]["rayClusterSpec"]["rayVersion"]
    minimum = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert minimum and python == f"py3{minimum[1]}" and re.fullmatch(r"cu\d+", cuda)
    assert re.search(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1] == image  # type: ignore[index]
    spec = rayjob["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    assert {container["image"] for container in containers} == {f"REGISTRY/multicse:{tag}"}
    assert {container["workingDir"] for container in containers} == {"/home/ray/multicse"}


def test_the_job_is_not_reachable_from_outside(rayjob: dict[str, Any]) -> None:
    """There is a token, and a network policy for every pod of the cluster that lists the allowed sources."""
    assert rayjob["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    parts = list(yaml.safe_load_all((ROOT / "rayjob.yaml").read_text()))
    assert not any("RAY_AUTH_MODE" in part.get("data", {}) for part in parts)
    (policy,) = [part["spec"] for part in parts if part["kind"] == "NetworkPolicy"]
    assert policy["podSelector"] == {"matchLabels": {"ray.io/is-ray-node": "yes"}} and policy["policyTypes"] == ["Ingress"]
    assert all(peer["podSelector"]["matchLabels"] for rule in policy["ingress"] for peer in rule["from"])


def test_the_image_runs_as_a_user_with_a_writable_folder() -> None:
    """Docker creates the folder of WORKDIR as root for any user."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    kinds = [kind for kind, _ in steps]
    folder = next(rest for kind, rest in steps if kind == "WORKDIR")
    assert [rest for kind, rest in steps if kind == "USER"] == ["ray"]
    assert steps.index(["RUN", f"mkdir -p {folder}"]) in range(kinds.index("USER"), kinds.index("WORKDIR"))
    assert set(kinds) <= {"FROM", "USER", "ENV", "ARG", "RUN", "WORKDIR", "COPY"}, "ADD unpacks archives and downloads URLs"
    for kind, rest in steps:
        assert kind != "COPY" or rest.startswith("--chown=ray:users ")
        assert kind != "RUN" or not re.search(r"\b(sudo|curl|wget)\b|apt-get (?!.*--no-install-recommends)", rest), rest
        assert "pip install" not in rest or ("--no-cache-dir" in rest and "-c constraints.txt" in rest)
    copied = [rest.split()[1:] for kind, rest in steps if kind == "COPY"]
    assert ["multicse", "multicse"] in copied and ["RUN", "ln -s multicse/pipelines multicse/reproduction ."] in steps
    assert all((ROOT / name).is_file() for names in copied if names[-1] == "./" for name in names[:-1])


def test_the_image_and_the_nodes_use_the_same_index_for_torch(cluster: dict[str, Any]) -> None:
    """It can be replaced by another index, for example for a machine without a GPU."""
    text = (ROOT / "Dockerfile").read_text()
    index = re.search(r"^ARG TORCH_INDEX=(https://download\.pytorch\.org/whl/cu\d+)$", text, re.MULTILINE)
    assert index and text.index("FROM ") < index.start() < text.index("--extra-index-url ${TORCH_INDEX}")
    assert cluster["setup_commands"][0].endswith(f"-c constraints.txt --extra-index-url {index[1]}")


def test_the_jobs_entrypoint_is_a_recipe(rayjob: dict[str, Any]) -> None:
    from multicse.commands.cli import parse
    from multicse.pipelines import visualcse
    from multicse.trainers.engine.checks import check_settings

    words = rayjob["spec"]["entrypoint"].split()
    assert words[:2] == ["python", "pipelines/visualcse.py"]
    recipe = parse(visualcse.RECIPES, "", words[2:])
    check_settings(recipe)
    gpu = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert 0 < recipe.run.gpus_per_worker <= int(gpu["nvidia.com/gpu"])
    reading = sum(stream.cpus for stream in recipe.streams.values())
    assert recipe.run.cpus_per_worker + reading <= int(gpu["cpu"])
    assert recipe.run.max_failures > 0, "spot nodes can be terminated"


# ------------------------------------------------------------------------------------------------ AWS, on an emulator


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Start the emulator of AWS, with a home folder for the key pair that Ray creates."""
    with S3Server(tmp_path / "aws") as server:
        for name, value in server.env_for_clients.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield server


def stack(address: str, **more: str) -> dict[str, str]:
    """Deploy cluster-aws.yaml as described in docs/how-to/cluster.md and return its outputs."""
    import boto3

    client = boto3.client("cloudformation")
    values = {"Address": address, "Bucket": "my-bucket", **more}
    client.create_stack(
        StackName="multicse",
        TemplateBody=(ROOT / "cluster-aws.yaml").read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
    )
    (found,) = client.describe_stacks(StackName="multicse")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}


@pytest.mark.cluster
def test_ray_up_on_the_stack_is_closed_and_on_spot(whole: dict[str, Any], aws: S3Server) -> None:
    """The stack is created, `ray up` runs its steps, and both kinds of nodes are started.

    Only SSH from one address is allowed, and a worker may access only the bucket.
    """
    import boto3
    from ray.autoscaler._private.aws.config import bootstrap_aws

    ec2 = boto3.client("ec2")
    public = ec2.describe_subnets()["Subnets"][-1]
    where = {"Vpc": public["VpcId"], "Zone": public["AvailabilityZone"], "PublicSubnet": public["SubnetId"]}
    made_there = stack("203.0.113.7/32", Range="172.31.240.0/20", **where)
    group, private = made_there["SecurityGroup"], made_there["Subnet"]
    # The emulator ignores this in a stack; see the next test.
    ec2.modify_subnet_attribute(SubnetId=private, MapPublicIpOnLaunch={"Value": True})
    text = (ROOT / "cluster.yaml").read_text().replace("sg-00000000000000000", group)
    bootstrap_aws(prepared(yaml.safe_load(text)))
    text = re.sub("^#8 ", "", text, flags=re.MULTILINE).replace("subnet-00000000000000000", private)
    text = text.replace("subnet-11111111111111111", public["SubnetId"])
    config = bootstrap_aws(prepared(yaml.safe_load(text)))

    (rules,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    from_outside = [rule for rule in rules["IpPermissions"] if rule["IpRanges"] or rule.get("Ipv6Ranges")]
    allowed = [(rule["FromPort"], rule["ToPort"], rule["IpRanges"]) for rule in from_outside]
    assert allowed == [(22, 22, [{"CidrIp": "203.0.113.7/32"}])]
    (inside,) = [rule for rule in rules["IpPermissions"] if rule["UserIdGroupPairs"]]
    assert inside["IpProtocol"] == "-1" and [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group]

    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]  # the emulator resolves no parameters
    spot = {}
    for name, kind in config["available_node_types"].items():
        node = {**kind["node_config"], "ImageId": image}
        subnets = node.pop("SubnetIds")
        if "NetworkInterfaces" in node:
            assert {*subnets} == {private}
            node.pop("SecurityGroupIds")
        else:
            assert subnets == [public["SubnetId"]], "the subnet of gpu8 is not reachable from outside"
            node["SubnetId"] = subnets[0]
        (made,) = ec2.run_instances(MinCount=1, MaxCount=1, **node)["Instances"]
        (found,) = ec2.describe_instances(InstanceIds=[made["InstanceId"]])["Reservations"][0]["Instances"]
        cards = [one for card in found["NetworkInterfaces"] for one in card["Groups"]]  # the emulator has them for gpu8
        assert {one["GroupId"] for one in found["SecurityGroups"] or cards} == {group}
        assert found["IamInstanceProfile"]["Arn"].endswith("multicse-head" if name == "head" else "multicse-worker")
        spot[name] = found.get("InstanceLifecycle")
    assert spot == {"head": None, "gpu": "spot", "gpu8": None}
    for name in ("gpu", "gpu8"):
        claimed = whole["available_node_types"][name]["resources"]
        node = whole["available_node_types"][name]["node_config"]
        machine = ec2.describe_instance_types(InstanceTypes=[node["InstanceType"]])["InstanceTypes"][0]
        assert machine["VCpuInfo"]["DefaultVCpus"] == claimed["CPU"]
        assert machine["GpuInfo"]["Gpus"][0]["Count"] == claimed["GPU"]
        efa = [one for one in node.get("NetworkInterfaces", ()) if one.get("InterfaceType") == "efa-only"]
        most = machine["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
        assert sorted(one["NetworkCardIndex"] for one in efa) == [*range(most)]

    (subnet,) = ec2.describe_subnets(SubnetIds=[private])["Subnets"]
    assert (subnet["CidrBlock"], subnet["AvailabilityZone"]) == ("172.31.240.0/20", public["AvailabilityZone"])
    (gateway,) = ec2.describe_nat_gateways()["NatGateways"]
    tables = {table["RouteTableId"]: table["Routes"] for table in ec2.describe_route_tables()["RouteTables"]}
    targets = {name: {to.get("NatGatewayId"): to.get("DestinationCidrBlock") for to in tables[name]} for name in tables}
    (table,) = [name for name, to in targets.items() if to.get(gateway["NatGatewayId"]) == "0.0.0.0/0"]
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    assert gateway["SubnetId"] == public["SubnetId"]
    assert endpoint["RouteTableIds"] == [table] and endpoint["ServiceName"].endswith(".s3")

    iam = boto3.client("iam")
    (role,) = iam.get_instance_profile(InstanceProfileName="multicse-worker")["InstanceProfile"]["Roles"]
    policy = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="bucket")["PolicyDocument"]
    policy = yaml.safe_load(policy) if isinstance(policy, str) else policy  # boto3 decodes the answer of AWS
    assert {one["Resource"] for one in policy["Statement"]} == {"arn:aws:s3:::my-bucket", "arn:aws:s3:::my-bucket/*"}
    assert not iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]


class Template(yaml.SafeLoader):
    """Loader that reads CloudFormation's tags as plain values: `!Ref Routes` is "Routes"."""


Template.add_multi_constructor("!", lambda loader, tag, node: node.value)


def test_the_subnet_of_several_network_cards_is_complete(whole: dict[str, Any]) -> None:
    """Parts of a stack that the emulator ignores: routes of the subnet, EFA between nodes, the placement group."""
    resources = yaml.load((ROOT / "cluster-aws.yaml").read_text(), Template)["Resources"]
    made = {name: resource.get("Properties") for name, resource in resources.items()}
    assert made["RoutesOfSubnet"] == {"RouteTableId": "Routes", "SubnetId": "Subnet"}
    assert made["Subnet"]["MapPublicIpOnLaunch"] is True, "Ray supports no other"
    both = {"GroupId": "Closed.GroupId", "IpProtocol": "-1"}
    assert made["AmongNodes"] == both | {"SourceSecurityGroupId": "Closed.GroupId"}
    assert made["ToNodes"] == both | {"DestinationSecurityGroupId": "Closed.GroupId"}
    assert made["Closed"]["SecurityGroupEgress"] == [{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}]
    placement = whole["available_node_types"]["gpu8"]["node_config"]["Placement"]
    assert made["Together"] == placement | {"Strategy": "cluster"}
    fast = {name for name, resource in resources.items() if resource.get("Condition") == "Fast"}
    assert fast == {"Together", "Subnet", "Outside", "Gateway", "Routes", "ToOutside", "RoutesOfSubnet", "ToBucket"}


def test_the_stack_is_closed_and_has_no_aliases() -> None:
    """AWS refuses YAML aliases in a template; the emulator does not."""
    tokens = yaml.scan((ROOT / "cluster-aws.yaml").read_text())
    assert not [token for token in tokens if isinstance(token, (yaml.AliasToken, yaml.AnchorToken))]
    pattern = re.search(r'AllowedPattern: "(.+)"', (ROOT / "cluster-aws.yaml").read_text())
    assert pattern
    assert re.fullmatch(pattern[1], "203.0.113.7/32")
    for open_to in ("0.0.0.0/0", "10.0.0.0/8", "everybody"):
        assert not re.fullmatch(pattern[1], open_to)
