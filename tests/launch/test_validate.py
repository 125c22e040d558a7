"""Mistakes in CreateTrainingJob requests are found without network, with field and remedy."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.main import main
from headrace.cost.market.prices import PriceTable
from headrace.launch.job_request.request import Channel, InstanceGroup, TrainingJob, build_request
from headrace.launch.job_request.validate import check_request
from headrace.launch.sagemaker.metrics import METRICS
from headrace.launch.sagemaker.plan import Work, expected_cost

validate = pytest.importorskip("botocore.validate")

ROLE = "arn:aws:iam::123456789012:role/headrace-training"
Change = Callable[[dict[str, Any]], object]


def job(**changed: Any) -> TrainingJob:
    options: dict[str, Any] = {
        "name": "flowers-1",
        "instance": "ml.g5.2xlarge",
        "role": ROLE,
        "bucket": "my-bucket",
        "channels": [Channel("train", "s3://my-bucket/flowers/train")],
        "hyperparameters": {"model": "resnet50", "epochs": "16"},
        **changed,
    }
    return TrainingJob(**options)


def set_at(*path: str | int, value: Any) -> Change:
    def change(request: dict[str, Any]) -> None:
        inner: Any = request
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return change


def drop(*path: str | int) -> Change:
    def change(request: dict[str, Any]) -> None:
        inner: Any = request
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]

    return change


def both(*changes: Change) -> Change:
    return lambda request: [change(request) for change in changes]


S3 = ("InputDataConfig", 0, "DataSource", "S3DataSource")
FSX = {"FileSystemDataSource": {"FileSystemId": "fs-0123456789abcdef0", "FileSystemType": "FSxLustre",
                                "FileSystemAccessMode": "ro", "DirectoryPath": "/fsx/train"}}  # fmt: skip
VPC = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
GROUPS = [{"InstanceGroupName": "a", "InstanceType": "ml.g5.xlarge", "InstanceCount": 1}] * 2


def file_system(**fields: str) -> Change:
    """A sound channel on FSx for Lustre, but for these fields."""
    return both(
        set_at("InputDataConfig", 0, "DataSource", value={"FileSystemDataSource": {**FSX["FileSystemDataSource"], **fields}}),
        set_at("InputDataConfig", 0, "InputMode", value="File"),
        set_at("VpcConfig", value=VPC),
    )


#: What is planted, the field that must be named, and words of problem or remedy.
PLANTED: dict[str, tuple[Change, str, str]] = {
    "wrong enum": (set_at(*S3, "S3DataType", value="Prefix"), "S3DataType", "S3Prefix"),
    "mode in lower case": (set_at("InputDataConfig", 0, "InputMode", value="fastfile"), "InputMode", "FastFile"),
    "EC2's name of the instance": (
        set_at("ResourceConfig", "InstanceType", value="g5.2xlarge"),
        "InstanceType",
        "ml.g5.2xlarge",
    ),
    "name too long": (set_at("TrainingJobName", value="a" * 64), "TrainingJobName", "at most 63"),
    "name with an underscore": (set_at("TrainingJobName", value="my_job"), "TrainingJobName", "must match"),
    "name ends in a dash": (set_at("TrainingJobName", value="job-"), "TrainingJobName", "must match"),
    "role is a name": (set_at("RoleArn", value="headrace-training-role"), "RoleArn", "arn:aws"),
    "no role": (drop("RoleArn"), "RoleArn", "missing"),
    "hyperparameter is a number": (set_at("HyperParameters", "epochs", value=16), "HyperParameters['epochs']", 'write "16"'),
    "hyperparameter is true": (set_at("HyperParameters", "amp", value=True), "HyperParameters['amp']", "string"),
    "hyperparameter too long": (set_at("HyperParameters", "x", value="y" * 2501), "HyperParameters['x']", "at most 2500"),
    "101 hyperparameters": (
        set_at("HyperParameters", value={str(n): "1" for n in range(101)}),
        "HyperParameters",
        "at most 100",
    ),
    "environment name with a dash": (set_at("Environment", value={"BATCH-SIZE": "1"}), "Environment", "must match"),
    "environment value too long": (set_at("Environment", value={"X": "y" * 513}), "Environment", "at most 512"),
    "misspelt field": (set_at("ResourceConfig", "InstanceTypes", value="ml.g5.xlarge"), "InstanceTypes", "write InstanceType"),
    "unknown field": (set_at("Banana", value=1), "Banana", "remove it"),
    "count is text": (set_at("ResourceConfig", "InstanceCount", value="2"), "InstanceCount", "whole number"),
    "no instances": (set_at("ResourceConfig", "InstanceCount", value=0), "InstanceCount", "1 or more"),
    "no algorithm": (drop("AlgorithmSpecification"), "AlgorithmSpecification", "TrainingImage"),
    "no image": (drop("AlgorithmSpecification", "TrainingImage"), "AlgorithmSpecification", "TrainingImage"),
    "image and algorithm": (set_at("AlgorithmSpecification", "AlgorithmName", value="mine"), "AlgorithmSpecification", "both"),
    "image of another region": (
        set_at(
            "AlgorithmSpecification", "TrainingImage", value="763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2"
        ),
        "TrainingImage",
        "us-east-1",
    ),
    "metric without a group": (
        set_at("AlgorithmSpecification", "MetricDefinitions", 0, "Regex", value="loss .*"),
        "MetricDefinitions[0]",
        "parentheses",
    ),
    "metric that does not compile": (
        set_at("AlgorithmSpecification", "MetricDefinitions", 0, "Regex", value="loss (["),
        "MetricDefinitions[0]",
        "regular",
    ),
    "metric twice": (
        set_at("AlgorithmSpecification", "MetricDefinitions", 0, "Name", value="train:wait_percent"),
        "MetricDefinitions",
        "two",
    ),
    "41 metrics": (
        set_at("AlgorithmSpecification", "MetricDefinitions", value=[{"Name": f"m{n}", "Regex": "(.)"} for n in range(41)]),
        "MetricDefinitions",
        "at most 40",
    ),
    "spot without a longest wait": (set_at("EnableManagedSpotTraining", value=True), "MaxWaitTimeInSeconds", "86400 or more"),
    "wait shorter than the run": (
        both(set_at("EnableManagedSpotTraining", value=True), set_at("StoppingCondition", "MaxWaitTimeInSeconds", value=60)),
        "MaxWaitTimeInSeconds",
        "less than MaxRuntimeInSeconds",
    ),
    "wait without spot": (set_at("StoppingCondition", "MaxWaitTimeInSeconds", value=90000), "MaxWaitTimeInSeconds", "Spot"),
    "no stopping condition": (drop("StoppingCondition"), "StoppingCondition", "longest time"),
    "29 days": (set_at("StoppingCondition", "MaxRuntimeInSeconds", value=29 * 86400), "MaxRuntimeInSeconds", "28 days"),
    "spot with a warm pool": (
        both(
            set_at("EnableManagedSpotTraining", value=True),
            set_at("StoppingCondition", "MaxWaitTimeInSeconds", value=90000),
            set_at("ResourceConfig", "KeepAlivePeriodInSeconds", value=600),
        ),
        "KeepAlivePeriodInSeconds",
        "warm pool",
    ),
    "warm pool too long": (set_at("ResourceConfig", "KeepAlivePeriodInSeconds", value=21601), "KeepAlive", "at most 21600"),
    "relative checkpoint path": (
        set_at("CheckpointConfig", "LocalPath", value="checkpoints"),
        "LocalPath",
        "/opt/ml/checkpoints",
    ),
    "checkpoints in the model folder": (
        set_at("CheckpointConfig", "LocalPath", value="/opt/ml/model/x"),
        "LocalPath",
        "belongs",
    ),
    "checkpoints among the data": (
        set_at("CheckpointConfig", "S3Uri", value="s3://my-bucket/flowers/train/checkpoints"),
        "CheckpointConfig.S3Uri",
        "inside",
    ),
    "channel twice": (set_at("InputDataConfig", 1, "ChannelName", value="train"), "InputDataConfig", "two channels"),
    "channel with a space": (set_at("InputDataConfig", 0, "ChannelName", value="my data"), "ChannelName", "must match"),
    "no channels in the list": (set_at("InputDataConfig", value=[]), "InputDataConfig", "at least 1"),
    "no source": (set_at("InputDataConfig", 0, "DataSource", value={}), "DataSource", "has no source"),
    "two sources": (lambda request: request["InputDataConfig"][0]["DataSource"].update(FSX), "DataSource", "2 sources"),
    "no S3 address": (set_at(*S3, "S3Uri", value="my-bucket/train"), "S3Uri", "must match"),
    "bucket in capitals": (set_at("OutputDataConfig", "S3OutputPath", value="s3://MyBucket/x"), "S3OutputPath", "a-z"),
    "FastFile with a part of a name": (set_at(*S3, "S3Uri", value="s3://my-bucket/tra"), "S3Uri", "end the prefix with /"),
    "FastFile with a manifest": (set_at(*S3, "S3DataType", value="ManifestFile"), "S3DataType", "prefixes"),
    "augmented manifest in File mode": (
        both(
            set_at(*S3, "S3DataType", value="AugmentedManifestFile"),
            set_at("InputDataConfig", 0, "InputMode", value="File"),
            set_at(*S3, "AttributeNames", value=["image"]),
        ),
        "S3DataType",
        "Pipe",
    ),
    "attributes without a manifest": (set_at(*S3, "AttributeNames", value=["image"]), "AttributeNames", "S3Prefix"),
    "Gzip in FastFile": (set_at("InputDataConfig", 0, "CompressionType", value="Gzip"), "CompressionType", "Pipe"),
    "RecordIO in File mode": (
        both(
            set_at("InputDataConfig", 0, "InputMode", value="File"),
            set_at("InputDataConfig", 0, "RecordWrapperType", value="RecordIO"),
        ),
        "RecordWrapperType",
        "Pipe",
    ),
    "Pipe with a reader that is no FIFO": (
        both(
            set_at("InputDataConfig", 0, "InputMode", value="Pipe"),
            set_at("Environment", value={"HEADRACE_SCRIPT": "train.py"}),
        ),
        "InputMode",
        "named pipe",
    ),
    "FastFile with FSx": (
        both(set_at("InputDataConfig", 0, "DataSource", value=copy.deepcopy(FSX)), set_at("VpcConfig", value=VPC)),
        "InputMode",
        "set File",
    ),
    "FSx without a VPC": (
        both(
            set_at("InputDataConfig", 0, "DataSource", value=copy.deepcopy(FSX)),
            set_at("InputDataConfig", 0, "InputMode", value="File"),
        ),
        "VpcConfig",
        "Subnets",
    ),
    "FSx without the mount name": (
        file_system(DirectoryPath="/"),
        "DirectoryPath",
        "mount name",
    ),
    "VPC without subnets": (set_at("VpcConfig", value={"SecurityGroupIds": ["sg-1"]}), "VpcConfig.Subnets", "missing"),
    "groups and a type": (set_at("ResourceConfig", "InstanceGroups", value=GROUPS[:1]), "ResourceConfig", "excludes"),
    "two groups of one name": (
        set_at("ResourceConfig", value={"InstanceGroups": GROUPS, "VolumeSizeInGB": 9}),
        "InstanceGroups",
        "two groups",
    ),
    "channel for an unknown group": (set_at(*S3, "InstanceGroupNames", value=["b"]), "InstanceGroupNames", "no group 'b'"),
    "type without a disk or volume": (
        set_at("ResourceConfig", value={"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1}),
        "VolumeSizeInGB",
        "no disk",
    ),
    "key for NVMe": (set_at("ResourceConfig", "VolumeKmsKeyId", value="key"), "VolumeKmsKeyId", "NVMe"),
    "access key in the environment": (
        set_at("Environment", value={"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"}),
        "Environment",
        "RoleArn",
    ),
    "access key in a hyperparameter": (
        set_at("HyperParameters", "key", value="AKIAIOSFODNN7EXAMPLE"),
        "HyperParameters['key']",
        "access key",
    ),
    "reserved tag": (set_at("Tags", value=[{"Key": "aws:x", "Value": "1"}]), "Tags[0]", "reserved"),
    "tag twice": (set_at("Tags", value=[{"Key": "a", "Value": "1"}] * 2), "Tags", "two tags"),
    "isolation and an installation": (set_at("EnableNetworkIsolation", value=True), "EnableNetworkIsolation", "wheel"),
    "profiler's interval": (
        set_at("ProfilerConfig", value={"S3OutputPath": "s3://my-bucket/x", "ProfilingIntervalInMilliseconds": 150}),
        "ProfilingIntervalInMilliseconds",
        "one of 100, 200",
    ),
    "image as a web address": (
        set_at("AlgorithmSpecification", "TrainingImage", value="https://123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1"),
        "TrainingImage",
        "without https://",
    ),
    "image with a space": (set_at("AlgorithmSpecification", "TrainingImage", value="my image:1"), "TrainingImage", "REGISTRY"),
    "checkpoints over all of /opt/ml": (set_at("CheckpointConfig", "LocalPath", value="/opt/ml/"), "LocalPath", "belongs"),
    "access key in the arguments": (
        set_at("AlgorithmSpecification", "ContainerArguments", value=["--key", "AKIAIOSFODNN7EXAMPLE"]),
        "ContainerArguments[1]",
        "RoleArn",
    ),
    "access key in a tag": (set_at("Tags", value=[{"Key": "k", "Value": "AKIAIOSFODNN7EXAMPLE"}]), "Tags[0].Value", "RoleArn"),
    "file system of an unknown kind": (
        file_system(FileSystemType="Lustre"),
        "FileSystemType",
        "FSxLustre",
    ),
    "17 subnets": (
        set_at("VpcConfig", value={"Subnets": [f"subnet-{n}" for n in range(17)], "SecurityGroupIds": ["sg-1"]}),
        "VpcConfig.Subnets",
        "at most 16",
    ),
    "role of a user": (set_at("RoleArn", value="arn:aws:iam::123456789012:user/me"), "RoleArn", "role/"),
    "role with a placeholder": (set_at("RoleArn", value="arn:aws:iam::ACCOUNT:role/x"), "RoleArn", "must match"),
    "seconds with a fraction": (set_at("StoppingCondition", "MaxRuntimeInSeconds", value=3600.0), "MaxRuntime", "whole number"),
    "waiting time too short": (
        set_at("StoppingCondition", "MaxPendingTimeInSeconds", value=100),
        "MaxPendingTimeInSeconds",
        "at least 1800",
    ),
    "spot as text": (set_at("EnableManagedSpotTraining", value="true"), "EnableManagedSpotTraining", "true or false"),
    "6 instance groups": (
        set_at(
            "ResourceConfig",
            value={"InstanceGroups": [{**GROUPS[0], "InstanceGroupName": f"g{n}"} for n in range(6)], "VolumeSizeInGB": 9},
        ),
        "InstanceGroups",
        "at most 5",
    ),
    "an instance that does not exist": (
        set_at("ResourceConfig", "InstanceType", value="ml.g5.3xlarge"),
        "InstanceType",
        "ml.g5.xlarge",
    ),
    "shuffling without a seed": (set_at("InputDataConfig", 0, "ShuffleConfig", value={}), "ShuffleConfig.Seed", "missing"),
    "21 channels": (
        lambda request: request.update(
            InputDataConfig=[{**copy.deepcopy(request["InputDataConfig"][0]), "ChannelName": f"c{n}"} for n in range(21)]
        ),
        "InputDataConfig",
        "at most 20",
    ),
    "output in an unknown archive": (
        set_at("OutputDataConfig", "CompressionType", value="ZIP"),
        "OutputDataConfig.CompressionType",
        "GZIP",
    ),
    "experiment with an underscore": (
        set_at("ExperimentConfig", value={"ExperimentName": "my_exp"}),
        "ExperimentName",
        "must match",
    ),
    "31 retries": (set_at("RetryStrategy", value={"MaximumRetryAttempts": 31}), "MaximumRetryAttempts", "at most 30"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named_with_its_field_and_remedy(name: str) -> None:
    change, field, words = PLANTED[name]
    request = build_request(job())
    assert check_request(request, region="us-east-1") == []
    change(request)
    found = [mistake for mistake in check_request(request, region="us-east-1") if mistake.fatal]
    assert any(field in mistake.field and words in str(mistake) for mistake in found), list(map(str, found))
    assert all(mistake.remedy for mistake in found)


def test_an_unknown_structure_hides_no_mistake_between_fields() -> None:
    request = build_request(job())
    both(set_at("InputDataConfg", value=[{"ChannelName": "train"}]), drop("AlgorithmSpecification", "TrainingImage"))(request)
    assert {one.field for one in check_request(request)} == {"InputDataConfg", "AlgorithmSpecification"}
    for boundless in (json.loads("[" * 900 + "]" * 900), [["password=planted"] * 20] * 1000):
        assert [one.field for one in check_request(request | {"InputDataConfg": boundless})] == ["InputDataConfg"]


def test_what_only_wastes_money_is_a_remark() -> None:
    request = build_request(job(spot=True, channels=[Channel("train", "s3://my-bucket/x", distribution="ShardedByS3Key")]))
    del request["CheckpointConfig"]
    found = check_request(request)
    assert {mistake.field for mistake in found if not mistake.fatal} >= {"CheckpointConfig"}
    assert not any(mistake.fatal for mistake in found)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("Environment", "WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
        ("HyperParameters", "hub", "ghp_" + "a1" * 18),
    ],
)
def test_a_secret_that_others_may_read_is_a_remark_without_its_value(
    part: str, key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = build_request(job())
    request[part][key] = value
    (found,) = check_request(request)
    assert found.field == f"{part}[{key!r}]" and not found.fatal and "Secrets Manager" in found.remedy
    path = tmp_path / "job.json"
    path.write_text(json.dumps(request))
    assert main(["launch", "sagemaker", "--request", str(path), "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert value not in printed.out + printed.err and "Secrets Manager" in printed.err


def test_a_mistake_is_shown_without_the_key_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = build_request(job())
    set_at(*S3, "S3Uri", value="s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/x/")(request)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(request))
    assert main(["launch", "sagemaker", "--request", str(path), "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert "AKIA" not in printed.out + printed.err and "wJalrXUtnFEMI" not in printed.out + printed.err
    assert "S3Uri" in printed.err


@pytest.mark.parametrize("value", [None, [], "x", {}, {"TrainingJobName": None}, {"InputDataConfig": [1]}, {"Tags": [{}]}])
def test_anything_at_all_is_checked_without_an_exception(value: Any) -> None:
    assert check_request(value)


def test_every_request_of_the_builder_is_valid() -> None:
    service = pytest.importorskip("botocore.session").get_session().get_service_model("sagemaker")
    shape = service.operation_model("CreateTrainingJob").input_shape
    channel_lists = [
        [
            Channel(
                "train", "s3://my-bucket/x", mode=mode, distribution=distribution, shuffle_seed=seed, record_io=mode == "Pipe"
            )
        ]
        for mode, distribution, seed in itertools.product(
            ("File", "FastFile", "Pipe"), ("FullyReplicated", "ShardedByS3Key"), (None, 7)
        )
    ]
    channel_lists.append([Channel("train", "fs-0123456789abcdef0:/fsx/x", mode="File", file_system="FSxLustre")])
    channel_lists.append([Channel("train", "s3://my-bucket/x/", groups=["gpu"]), Channel("validation", "s3://my-bucket/v")])
    machines: list[dict[str, Any]] = [
        {"count": 2},
        {"spot": True, "count": 2},
        {"spot": True, "max_wait_hours": 30.0, "max_hours": 24.0, "count": 2},
        {"warm_pool_minutes": 30.0, "count": 2},
        {"instance": "ml.p3.2xlarge", "count": 2},
        {"instance": "ml.m5.xlarge", "count": 2},
        {"groups": [InstanceGroup("gpu", "ml.g5.xlarge", 2), InstanceGroup("cpu", "ml.m5.xlarge", 2)]},
    ]
    others: list[dict[str, Any]] = [
        {},
        {"wheel": "headrace-1-py3-none-any.whl", "tags": {"team": "a"}, "environment": {"A": "b"}},
    ]
    for channels, machine, other in itertools.product(channel_lists, machines, others):
        if channels[0].groups and "groups" not in machine:
            continue
        vpc = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]} if channels[0].file_system else {}
        request = build_request(job(channels=channels, **machine, **other, **vpc))
        assert [one for one in check_request(request, region="us-east-1") if one.fatal] == [], request
        assert not validate.ParamValidator().validate(request, shape).has_errors()
        assert json.loads(json.dumps(request)) == request


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {path: leaf for key, inner in value.items() for path, leaf in leaves(inner, f"{at}.{key}".strip(".")).items()}
    return {at: value}


SDK_ALONE = {"DebugHookConfig.CollectionConfigurations", "DebugHookConfig.S3OutputPath", "ProfilerConfig.DisableProfiler"}
"""What only the SDK asks for: files of Debugger, which nobody reads here. Ours has its own tag besides the user's."""


def test_the_official_sdk_asks_for_the_same_job_but_for_what_is_listed() -> None:
    recorded = json.loads((Path(__file__).parents[1] / "golden" / "sagemaker_sdk_request.json").read_text())
    channels = [Channel("train", "s3://my-bucket/flowers/train", distribution="ShardedByS3Key")]
    ours = build_request(
        TrainingJob(
            "flowers-1", "ml.g5.2xlarge", ROLE, "my-bucket", channels, count=2, spot=True, max_hours=6,
            hyperparameters={"model": "resnet50", "epochs": "90"}, environment={"A": "b"}, tags={"team": "a"},
            subnets=["subnet-1"], security_groups=["sg-1"],
        )
    )  # fmt: skip
    assert recorded["made_by"].startswith("sagemaker 2.257")
    assert ours["Tags"].pop(0)["Key"] == "headrace"
    ours["AlgorithmSpecification"]["ContainerEntrypoint"] = recorded["request"]["AlgorithmSpecification"]["ContainerEntrypoint"]
    theirs, ours = leaves(recorded["request"]), leaves(ours)
    assert {path for path in {*theirs, *ours} if theirs.get(path) != ours.get(path)} == SDK_ALONE
    assert [one for one in check_request(recorded["request"]) if one.fatal] == []


def test_metrics_match_the_lines_that_training_logs() -> None:
    lines = [
        "resnet20 epoch 1 step 11/25 wait <1 %: 176/400 img, 2.3 img/s (steps alone), 92 s, 97 s left",
        "resnet20 epoch 1 step 21/25 loss 1.376 wait 12 %: 336/400 img, 1,333.8 img/s (steps alone), 131 s, 17 s left",
        "resnet20 epoch 1 step 25/25 wait <1 % top-1 25.5 %: 400/400 img, 4.1 img/s (steps alone), 198 s",
    ]
    found = {name: [match[1] for line in lines if (match := re.search(regex, line))] for name, regex in METRICS.items()}
    assert found == {
        "train:loss": ["1.376"],
        "train:images_per_second": ["2.3", "1,333.8", "4.1"],
        "train:wait_percent": ["1", "12", "1"],
        "validation:top1_percent": ["25.5"],
    }


def test_the_cost_of_a_request_is_that_of_headrace_cost() -> None:
    table = PriceTable.load()
    work = Work("resnet50", 1_281_167, 16, 141e9)
    spot, on_demand = (expected_cost(build_request(job(spot=flag)), work, table) for flag in (True, False))
    price = table.price(table.instance("g5.2xlarge"), "sagemaker").usd_per_hour
    assert on_demand.usd is not None and on_demand.hours is not None and spot.usd is not None
    assert on_demand.usd == on_demand.usd_on_demand and spot.usd == spot.usd_spot
    assert on_demand.requests_usd == pytest.approx(16 * 1_281_167 * 0.0004 / 1000)  # FastFile: each image in each epoch
    assert price * on_demand.hours <= on_demand.usd - on_demand.requests_usd <= price * (on_demand.hours + 1)
    assert spot.usd < on_demand.usd
    assert on_demand.usd_at_most == pytest.approx(24 * price)
    two = expected_cost(build_request(job(count=2)), work, table)
    assert two.usd_at_most == pytest.approx(48 * price)
    unknown = expected_cost(build_request(job(instance="ml.m5.xlarge")), work, table)
    assert unknown.usd is None and unknown.note is not None and "m5.xlarge" in unknown.note


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HEADRACE_PRICES", str(tmp_path / "prices"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    base = "launch sagemaker --model resnet50 --data s3://my-bucket/train --instance ml.g5.xlarge --bucket my-bucket --dry-run"
    return [*base.split(), "--role", ROLE]


def test_a_dry_run_prints_request_and_cost(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "job.json"
    more = ["--count", "2", "--spot", "--input-mode", "Pipe", "--distribution", "ShardedByS3Key", "--max-hours", "5"]
    assert main([*words, *more, "--hyperparameter", "lr=0.5=x", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert "planted" not in printed.out + printed.err
    document = json.loads(printed.out)
    assert set(document) == {"request", "expected_cost"}
    request = document["request"]
    assert request["HyperParameters"] == {"model": "resnet50", "lr": "0.5=x"}
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 18000, "MaxWaitTimeInSeconds": 36000}
    source = request["InputDataConfig"][0]
    assert source["InputMode"] == "Pipe"
    assert source["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "ShardedByS3Key"
    assert document["expected_cost"]["usd_at_most"] == pytest.approx(2 * 5 * 1.408)
    assert json.loads(out.read_text()) == request
    assert main(["launch", "sagemaker", "--request", str(out), "--dry-run"]) == 0
    assert "the request is valid; nothing was sent" in capsys.readouterr().out


def test_another_region_has_its_own_image_and_says_whose_prices_are_shown(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--region", "eu-west-1", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert ".ecr.eu-west-1." in document["request"]["AlgorithmSpecification"]["TrainingImage"]
    assert document["expected_cost"]["usd_per_hour"] == 1.408
    assert "the offline price table holds us-east-1 only" in printed.err and "refresh --region eu-west-1" in printed.err


def test_mistakes_end_with_code_2_and_name_each_field(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--name", "my_job", "--role", "admin", "--max-wait-hours", "3", "--spot"]) == 2
    printed = capsys.readouterr().err
    for field in ("TrainingJobName", "RoleArn", "StoppingCondition.MaxWaitTimeInSeconds"):
        assert field in printed
    assert "nothing was sent" in printed and "Traceback" not in printed
    assert main(["launch", "sagemaker", "--dry-run", "--model", "resnet50"]) == 2
    assert "needs --data, --role, --bucket, --instance" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"TrainingJobName": 3}'])
def test_a_file_that_is_no_request_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text)
    assert main(["launch", "sagemaker", "--request", str(tmp_path / "x.json"), "--dry-run"]) == 2
    assert "Traceback" not in capsys.readouterr().err
