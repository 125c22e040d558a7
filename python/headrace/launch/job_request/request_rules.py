"""Check that the fields of a request fit together: rules that botocore's description of the service does not contain.

Sources: API reference of CreateTrainingJob and the SageMaker developer guide (2023); the known limits of managed spot
training, warm pools and heterogeneous clusters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.cost.market.prices import PREFIX, PriceTable
from headrace.launch.job_request.mistakes import Mistake
from headrace.system.text.redaction import redact_text

__all__ = ["MOST_INSTANCES", "rule_mistakes"]

Request = Mapping[str, Any]

LONGEST_S = 28 * 24 * 3600
"""A training job may run for 28 days at most."""

MOST_INSTANCES = 10_000
"""Refuse more instances: no account can have them, and `launch local` would make a host for each."""

SECRET = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
SECRET_NAMES = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})
PROFILER_MS = (100, 200, 500, 1000, 5000, 60000)
"""The intervals that ProfilingIntervalInMilliseconds may have, by the API reference."""

IMAGE = re.compile(r"[^\s:/@]+(?:[:.][^\s/@]*)?(?:/[^\s:/@]+)*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?")
"""REGISTRY/REPOSITORY, with :TAG or @DIGEST."""

BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61})[a-z0-9]")
READS_PIPES = "HEADRACE_READS_PIPES"
"""Set in the environment of a job whose script reads named pipes itself."""


def rule_mistakes(request: Request, *, region: str | None = None) -> list[Mistake]:
    """Return the mistakes between the fields of a request, whose types are correct. region: where the request is sent."""
    return [mistake for rule in RULES for mistake in rule(request)] + list(_image_region(request, region))


def _get(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _channels(request: Request) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield path, channel and input mode of each channel."""
    default = _get(request, "AlgorithmSpecification", "TrainingInputMode") or "File"
    for place, channel in enumerate(request.get("InputDataConfig") or []):
        yield f"InputDataConfig[{place}]", channel, channel.get("InputMode") or default


def _types(request: Request) -> Iterator[tuple[str, str]]:
    """Yield path and name of each instance type."""
    resources = request.get("ResourceConfig") or {}
    if resources.get("InstanceType"):
        yield "ResourceConfig.InstanceType", resources["InstanceType"]
    for place, group in enumerate(resources.get("InstanceGroups") or []):
        yield f"ResourceConfig.InstanceGroups[{place}].InstanceType", group.get("InstanceType", "")


def _hosts(request: Request) -> int:
    resources = request.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups")
    return sum(one.get("InstanceCount", 0) for one in groups) if groups else resources.get("InstanceCount") or 0


def image(request: Request) -> Iterator[Mistake]:
    """Yield mistakes unless there is exactly one image or algorithm, and an entry point only with an image."""
    if "ServerlessJobConfig" in request:
        return
    found = request.get("AlgorithmSpecification")
    if found is None:
        yield Mistake("AlgorithmSpecification", "is missing", "add TrainingImage and TrainingInputMode")
        return
    both = [name for name in ("TrainingImage", "AlgorithmName") if found.get(name)]
    if len(both) != 1:
        what = "both TrainingImage and AlgorithmName are given" if both else "neither TrainingImage nor AlgorithmName is given"
        yield Mistake("AlgorithmSpecification", what, "give the URI of one image as TrainingImage")
    if found.get("TrainingImage") and IMAGE.fullmatch(found["TrainingImage"]) is None:
        yield Mistake(
            "AlgorithmSpecification.TrainingImage",
            "is no address of an image",
            "write REGISTRY/REPOSITORY:TAG, without https://",
        )
    if "AlgorithmName" in both and found.get("ContainerEntrypoint"):
        yield Mistake("AlgorithmSpecification.ContainerEntrypoint", "an algorithm has its own entry point", "use TrainingImage")


def _image_region(request: Request, region: str | None) -> Iterator[Mistake]:
    uri = _get(request, "AlgorithmSpecification", "TrainingImage") or ""
    found = re.match(r"\d{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com", uri)
    if region and found and found[1] != region:
        yield Mistake(
            "AlgorithmSpecification.TrainingImage", f"the image lies in {found[1]}, the job runs in {region}",
            f"use the repository of {region}",
        )  # fmt: skip


def metrics(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in metric definitions: each pattern must compile and have a group, each name be different."""
    found = _get(request, "AlgorithmSpecification", "MetricDefinitions") or []
    for place, metric in enumerate(found):
        at = f"AlgorithmSpecification.MetricDefinitions[{place}]"
        try:
            groups = re.compile(metric.get("Regex", "")).groups
        except (re.error, OverflowError, RecursionError) as reason:
            yield Mistake(f"{at}.Regex", f"is no regular expression: {reason}", "correct it")
            continue
        if groups < 1:
            yield Mistake(f"{at}.Regex", "has no group, so no number is kept", "put parentheses round the number")
    for name in _repeated(metric.get("Name") for metric in found):
        yield Mistake("AlgorithmSpecification.MetricDefinitions", f"two metrics are called {name!r}", "rename one")


def resources(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in ResourceConfig: one instance type or groups, the number of instances, the volume size."""
    if "ServerlessJobConfig" in request:
        return
    found = request.get("ResourceConfig")
    if found is None:
        yield Mistake("ResourceConfig", "is missing", "add InstanceType, InstanceCount and VolumeSizeInGB")
        return
    groups = found.get("InstanceGroups")
    if groups and (found.get("InstanceType") or found.get("InstanceCount")):
        yield Mistake("ResourceConfig", "InstanceGroups excludes InstanceType and InstanceCount", "remove one of the two")
    if not groups and not found.get("InstanceType") and not found.get("InstancePreferences"):
        yield Mistake("ResourceConfig.InstanceType", "is missing", "such as ml.g5.xlarge")
    counts = [("ResourceConfig.InstanceCount", found.get("InstanceCount"))] if not groups else [
        (f"ResourceConfig.InstanceGroups[{place}].InstanceCount", one.get("InstanceCount")) for place, one in enumerate(groups)
    ]  # fmt: skip
    for at, count in counts:
        if count is None and found.get("InstanceType"):
            yield Mistake(at, "is missing", "give 1 or more")
        elif count is not None and count < 1:
            yield Mistake(at, f"{count} instances cannot train", "give 1 or more")
        elif count is not None and count > MOST_INSTANCES:
            yield Mistake(at, f"{min(count, 10**18):,} instances are more than an account can have", "give fewer")
    for name in _repeated(one.get("InstanceGroupName") for one in groups or []):
        yield Mistake("ResourceConfig.InstanceGroups", f"two groups are called {name!r}", "rename one")


def volumes(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in volumes: instance types without NVMe need one; types with NVMe take no encryption key."""
    found = request.get("ResourceConfig") or {}
    table = PriceTable.load()
    for at, name in _types(request):
        known = table.instances.get(name.removeprefix(PREFIX))
        if known is None:
            continue
        if not known.nvme_gb and not found.get("VolumeSizeInGB"):
            yield Mistake(
                "ResourceConfig.VolumeSizeInGB", f"{name} has no disk of its own", "give the volume's size, such as 100"
            )
        if known.nvme_gb and found.get("VolumeKmsKeyId"):
            yield Mistake(
                "ResourceConfig.VolumeKmsKeyId", f"{name} has NVMe, which no key encrypts", f"remove it, or change {at}"
            )


def stopping(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in StoppingCondition: a time limit is needed; a limit of the wait with spot, and only there."""
    found = request.get("StoppingCondition")
    if found is None or not found.get("MaxRuntimeInSeconds"):
        yield Mistake("StoppingCondition.MaxRuntimeInSeconds", "is missing", "give the longest time of training in seconds")
        return
    longest, wait = found["MaxRuntimeInSeconds"], found.get("MaxWaitTimeInSeconds")
    if longest > LONGEST_S:
        yield Mistake("StoppingCondition.MaxRuntimeInSeconds", f"{longest} s is more than 28 days", f"give at most {LONGEST_S}")
    if not request.get("EnableManagedSpotTraining"):
        if wait is not None:
            yield Mistake(
                "StoppingCondition.MaxWaitTimeInSeconds", "a job on demand has no wait",
                "remove it, or set EnableManagedSpotTraining",
            )  # fmt: skip
    elif wait is None:
        yield Mistake(
            "StoppingCondition.MaxWaitTimeInSeconds", "a spot job needs a longest wait",
            f"give {longest} or more: training and all waits together",
        )  # fmt: skip
    elif wait < longest:
        yield Mistake(
            "StoppingCondition.MaxWaitTimeInSeconds", f"{wait} s is less than MaxRuntimeInSeconds, {longest} s",
            f"give {longest} or more: it includes the training",
        )  # fmt: skip


def spot(request: Request) -> Iterator[Mistake]:
    """Yield mistakes with spot instances: they need a checkpoint folder and exclude warm pools."""
    pool = _get(request, "ResourceConfig", "KeepAlivePeriodInSeconds")
    groups = _get(request, "ResourceConfig", "InstanceGroups")
    if pool and request.get("EnableManagedSpotTraining"):
        yield Mistake("ResourceConfig.KeepAlivePeriodInSeconds", "spot jobs have no warm pool", "remove it, or train on demand")
    if pool and groups:
        yield Mistake("ResourceConfig.KeepAlivePeriodInSeconds", "clusters of groups have no warm pool", "remove it")
    checkpoints = request.get("CheckpointConfig")
    if request.get("EnableManagedSpotTraining") and not checkpoints:
        yield Mistake(
            "CheckpointConfig", "without it a spot job begins anew after each interruption",
            "give S3Uri and LocalPath", fatal=False,
        )  # fmt: skip
    path = (checkpoints or {}).get("LocalPath")
    if path is not None and not path.startswith("/"):
        yield Mistake("CheckpointConfig.LocalPath", f"{path!r} is no absolute path", "write /opt/ml/checkpoints")
    own = path is not None and (path.rstrip("/") in ("", "/opt", "/opt/ml") and path.startswith("/"))
    if path is not None and (own or path.rstrip("/").startswith(("/opt/ml/input", "/opt/ml/model", "/opt/ml/output"))):
        yield Mistake("CheckpointConfig.LocalPath", f"{path} belongs to SageMaker", "write /opt/ml/checkpoints")
    yield from _inside_data(request, "CheckpointConfig", "S3Uri")


def _inside_data(request: Request, *field: str) -> Iterator[Mistake]:
    """Yield a mistake if `field`, where the job writes, lies inside the data of a channel, which it would change."""
    where = _folder(_get(request, *field) or "")
    for at, channel, _ in _channels(request):
        uri = _folder(_get(channel, "DataSource", "S3DataSource", "S3Uri") or "")
        if where and uri and f"{where}/".startswith(f"{uri}/"):
            yield Mistake(".".join(field), f"lies inside the data of {at}", "use a prefix of its own")


def _folder(uri: str) -> str:
    """The address as a local store maps it to a folder, where `a//b` is `a/b`."""
    return re.sub("/+", "/", uri).rstrip("/")


def channels(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in input channels: different names, one source each, an input mode that fits the source."""
    for name in _repeated(one.get("ChannelName") for one in request.get("InputDataConfig") or []):
        yield Mistake("InputDataConfig", f"two channels are called {name!r}", "rename one")
    for at, channel, mode in _channels(request):
        if channel.get("ChannelName") in (".", ".."):
            yield Mistake(f"{at}.ChannelName", "is no name of a folder", "give it a name, such as train")
        source = channel.get("DataSource") or {}
        if len(source) != 1:
            what = "has no source" if not source else f"has {len(source)} sources"
            yield Mistake(f"{at}.DataSource", what, "give one of S3DataSource, FileSystemDataSource")
            continue
        if "S3DataSource" in source:
            yield from _s3(request, at, channel, source["S3DataSource"], mode)
        if "FileSystemDataSource" in source:
            yield from _file_system(request, at, source["FileSystemDataSource"], mode)
        if channel.get("CompressionType") == "Gzip" and mode != "Pipe":
            yield Mistake(f"{at}.CompressionType", f"Gzip is unpacked in Pipe mode only, not in {mode}", "set None")
        if channel.get("RecordWrapperType") == "RecordIO" and mode != "Pipe":
            yield Mistake(f"{at}.RecordWrapperType", f"RecordIO is for Pipe mode, not for {mode}", "set None")
        if mode == "Pipe":
            yield from _reader(request, at)


def _reader(request: Request, at: str) -> Iterator[Mistake]:
    environment, parameters = request.get("Environment") or {}, request.get("HyperParameters") or {}
    script = environment.get("HEADRACE_SCRIPT") or parameters.get("sagemaker_program")
    if script and environment.get(READS_PIPES) != "1":
        yield Mistake(
            f"{at}.InputMode", f"in Pipe mode the channel is a named pipe, and {script} may open it as a folder",
            f"use FastFile, or set {READS_PIPES}=1 in Environment if the script reads the pipe",
        )  # fmt: skip


def _s3(request: Request, at: str, channel: Request, source: Request, mode: str) -> Iterator[Mistake]:
    at, kind = f"{at}.DataSource.S3DataSource", source.get("S3DataType")
    uri = source.get("S3Uri", "")
    if mode == "FastFile" and kind != "S3Prefix":
        yield Mistake(f"{at}.S3DataType", f"FastFile reads prefixes, not {kind}", "use S3Prefix, or File mode")
    if mode == "FastFile" and kind == "S3Prefix" and not uri.endswith("/"):
        yield Mistake(f"{at}.S3Uri", "FastFile takes no part of a folder's name", "end the prefix with /")
    if kind == "AugmentedManifestFile" and mode != "Pipe":
        yield Mistake(f"{at}.S3DataType", f"an augmented manifest is read in Pipe mode, not in {mode}", "use Pipe")
    if kind == "AugmentedManifestFile" and not source.get("AttributeNames"):
        yield Mistake(f"{at}.AttributeNames", "is missing", "name the attributes of the augmented manifest")
    if kind != "AugmentedManifestFile" and source.get("AttributeNames"):
        yield Mistake(f"{at}.AttributeNames", f"{kind} has no attributes", "remove them, or use AugmentedManifestFile")
    if source.get("S3DataDistributionType") == "ShardedByS3Key" and _hosts(request) == 1:
        yield Mistake(f"{at}.S3DataDistributionType", "one host gets all objects anyway", "use FullyReplicated", fatal=False)
    names = {one.get("InstanceGroupName") for one in _get(request, "ResourceConfig", "InstanceGroups") or []}
    for name in source.get("InstanceGroupNames") or []:
        if name not in names:
            known = ", ".join(sorted(map(str, names))) or "none"
            yield Mistake(f"{at}.InstanceGroupNames", f"there is no group {name!r}", f"groups of ResourceConfig: {known}")


def _file_system(request: Request, at: str, source: Request, mode: str) -> Iterator[Mistake]:
    kind = source.get("FileSystemType", "a file system")
    if mode != "File":
        yield Mistake(f"{at}.InputMode", f"{kind} is mounted as files: {mode} cannot be used", "set File")
    if not request.get("VpcConfig"):
        yield Mistake(
            "VpcConfig", f"{kind} is reached through a VPC", "give the Subnets and SecurityGroupIds of the file system"
        )
    path = source.get("DirectoryPath", "")
    if not path.startswith("/") or (path == "/" and kind == "FSxLustre"):
        yield Mistake(
            f"{at}.DataSource.FileSystemDataSource.DirectoryPath", f"{path!r} is no path of the file system",
            "begin with / and, for FSx for Lustre, the mount name: /fsx/train",
        )  # fmt: skip


def buckets(request: Request) -> Iterator[Mistake]:
    """Yield mistakes in S3 addresses: each must name a bucket that can exist."""
    places = [
        ("OutputDataConfig.S3OutputPath", _get(request, "OutputDataConfig", "S3OutputPath")),
        ("CheckpointConfig.S3Uri", _get(request, "CheckpointConfig", "S3Uri")),
    ]
    places += [
        (f"{at}.DataSource.S3DataSource.S3Uri", _get(channel, "DataSource", "S3DataSource", "S3Uri"))
        for at, channel, _ in _channels(request)
    ]
    yield from _inside_data(request, "OutputDataConfig", "S3OutputPath")
    for at, uri in places:
        if not {".", ".."}.isdisjoint((uri or "").split("/")):
            yield Mistake(at, f"{uri} leads out of its prefix", "write it without . and ..")
        if (uri or "").startswith("https://"):
            yield Mistake(at, "the toolkits read s3:// addresses only", "write s3://BUCKET/PREFIX", fatal=False)
        found = re.match(r"s3://([^/]*)", uri or "")
        if found and "@" in found[1]:
            yield Mistake(at, "holds a name or key before the bucket", "write s3://BUCKET/PREFIX; RoleArn gives the rights")
        elif found and (BUCKET.fullmatch(found[1]) is None or ".." in found[1]):
            yield Mistake(at, f"{found[1]!r} cannot be the name of a bucket", "3 to 63 of a-z, 0-9, - and .")


def secrets(request: Request) -> Iterator[Mistake]:
    """Yield mistakes for access keys and other secrets in the request, which DescribeTrainingJob would show, and bad tags."""
    for at, key, text in _texts(request, ""):
        if key in SECRET_NAMES or SECRET.search(text):
            yield Mistake(at, "holds an access key, which DescribeTrainingJob shows", "give RoleArn the rights")
        elif _is_secret(text if "[" not in at else f"{key}={text}"):
            yield Mistake(
                at, "looks like a secret, which DescribeTrainingJob shows", "let the script read it from AWS Secrets Manager",
                fatal=False,
            )  # fmt: skip
    for place, tag in enumerate(request.get("Tags") or []):
        if str(tag.get("Key", "")).lower().startswith("aws:"):
            yield Mistake(f"Tags[{place}].Key", "names with aws: are reserved", "choose another name")
    for name in _repeated(tag.get("Key") for tag in request.get("Tags") or []):
        yield Mistake("Tags", f"two tags are called {name!r}", "remove one")


def _is_secret(text: str) -> bool:
    return redact_text(text) != text


def _texts(value: Any, at: str, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, name and text of every string in a request."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            by_key = at in ("Environment", "HyperParameters")
            yield from _texts(inner, f"{at}[{name!r}]" if by_key else f"{at}.{name}".lstrip("."), str(name))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _texts(inner, f"{at}[{place}]", key)
    elif isinstance(value, str):
        yield at, key, value


def profiler(request: Request) -> Iterator[Mistake]:
    """Yield a mistake if the profiler's interval is not one that SageMaker allows (`PROFILER_MS`)."""
    interval = _get(request, "ProfilerConfig", "ProfilingIntervalInMilliseconds")
    if interval is not None and interval not in PROFILER_MS:
        allowed = ", ".join(map(str, PROFILER_MS))
        yield Mistake("ProfilerConfig.ProfilingIntervalInMilliseconds", f"{interval} is not allowed", f"one of {allowed}")


def isolation(request: Request) -> Iterator[Mistake]:
    """Yield a mistake if a container without network (EnableNetworkIsolation) would install a package."""
    if not request.get("EnableNetworkIsolation"):
        return
    words = " ".join(_get(request, "AlgorithmSpecification", "ContainerEntrypoint") or [])
    if "pip install" in words and "/opt/ml/input/data/" not in words:
        yield Mistake(
            "EnableNetworkIsolation", "the entry point installs a package from the network", "bring a wheel (--wheel)"
        )


def _repeated(names: Any) -> list[str]:
    return [str(name) for name, count in Counter(names).items() if count > 1]


RULES: tuple[Callable[[Request], Iterator[Mistake]], ...] = (
    image, metrics, resources, volumes, stopping, spot, channels, buckets, secrets, profiler, isolation,
)  # fmt: skip
