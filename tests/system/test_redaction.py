"""Secrets never leave: each kind is masked by its name or its shape, and ordinary command lines stay as they are."""

from __future__ import annotations

import pytest
from headrace.system.redaction import MASK, redact_text, redact_words

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PLANTED = [
    (["--token=s3cr3tvalue"], "s3cr3tvalue"),
    (["--token", "s3cr3tvalue"], "s3cr3tvalue"),
    (["--api-key", "k-9f8e7d6c"], "k-9f8e7d6c"),
    (["--api_key=k-9f8e7d6c"], "k-9f8e7d6c"),
    (["--wandb-key", "0123456789abcdef0123456789abcdef01234567"], "0123456789abcdef"),
    (["--password", "hunter2"], "hunter2"),
    (["--db.password=hunter2"], "hunter2"),
    (["logger.api_key=hunter2"], "hunter2"),
    (["env", "WANDB_API_KEY=hunter2", "python"], "hunter2"),
    (["--hf-token", "hf_abcdefghijklmnopqrstuvwxyz"], "hf_abc"),
    (["hf_abcdefghijklmnopqrstuvwxyz123456"], "hf_abc"),
    (["ghp_abcdefghijklmnopqrstuvwxyz0123456789"], "ghp_"),
    (["github_pat_11ABCDEFG0abcdefghijklmnopqrstuvwxyz"], "github_pat"),
    (["AKIAIOSFODNN7EXAMPLE"], "AKIA"),
    (["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"], "wJalr"),
    (["--aws-secret-access-key", "abc"], "abc"),
    (["https://user:p4ss@host/data"], "p4ss"),
    (["https://ghp0123456789abcdefghij@github.com/x"], "ghp0123"),
    (["https://b.s3.amazonaws.com/k?X-Amz-Credential=AK%2F&X-Amz-Signature=deadbeef00&X-Amz-Expires=60"], "deadbeef00"),
    (["https://a.blob.core.windows.net/c?sv=2022&sp=r&sig=deadbeef00%3D"], "deadbeef00"),
    (["DefaultEndpointsProtocol=https;AccountKey=Zm9vYmFyYmF6;EndpointSuffix=x"], "Zm9vYmFyYmF6"),
    (["Authorization: Bearer abcdef0123456789"], "abcdef0123456789"),
    (["--header", "Authorization: Basic dXNlcjpwYXNz"], "dXNlcjpwYXNz"),
    ([JWT], "eyJzdWIi"),
    (["sk-proj-abcdefghijklmnopqrstuvwxyz0123"], "abcdefghij"),
    (["xoxb-123456789012-abcdefghij"], "123456789012"),
    (["AIzaSyA-1234567890abcdefghijklmnopqrstu"], "AIzaSy"),
    (["https://hooks.slack.com/services/T00/B00/XXXXXXXX"], "XXXXXXXX"),
    (['{"api_key": "hunter2"}'], "hunter2"),
    (["-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"], "MIIEow"),
    (["curl", "-u", "me:hunter2", "https://host"], "hunter2"),
    (["redis://:hunter2@host:6379/0"], "hunter2"),
    # Each of these was printed whole by headrace before.
    (["-H", "Authorization: hunter2"], "hunter2"),
    (["--header", "Auth-Header: Basic hunter2=="], "hunter2"),
    (["--hyperparameters", '{"token": ["hunter2"], "epochs": 3}'], "hunter2"),
    (["--hyperparameters", r'{"config": "{\"secret_key\": \"hunter2\"}"}'], "hunter2"),
    ([r'--config={"password": "hunt\"er2"}'], "er2"),
    (["--hyperparameters={'api_key': ['hunter2']}"], "hunter2"),
    (["--cfg-options", "logger.init_kwargs.key=Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["http://me:a/hunter2@host/x"], "hunter2"),
    (["https://Ab3dEf6hIj9l@host/x"], "Ab3dEf6hIj9l"),
    (["git+https://Ab3dEf6hIj9l:x-oauth-basic@github.com/a/b"], "Ab3dEf6hIj9l"),
    (["--admin-token", "hunter2"], "hunter2"),
    (["--aws-session-token=hunter2"], "hunter2"),
    (["--auth", "me:hunter2"], "hunter2"),
    (["--jwt", "hunter2"], "hunter2"),
    (["--github-pat=hunter2"], "hunter2"),
    (["--key", "Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["--token", "-Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["--user", "me:hunter2"], "hunter2"),
    (["bash", "-c", "curl -u me:hunter2 https://host"], "hunter2"),
    (["sshpass", "-p", "hunter2", "ssh", "host"], "hunter2"),
    (["aws", "configure", "set", "aws_secret_access_key", "hunter2"], "hunter2"),
    (["wandb", "login", "Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["-c", 'import os; os.environ["API_KEY"]="hunter2"'], "hunter2"),
    (["-c", "os.environ.setdefault('HF_TOKEN', 'hunter2')"], "hunter2"),
    (["-c", "wandb.login(key='Ab3dEf6hIj9l')"], "Ab3dEf6hIj9l"),
    (["https://host/y?sessionid=hunter2"], "hunter2"),
    (["https://host/y?token%3Dhunter2"], "hunter2"),
    (["xapp-1-A012345-678901"], "678901"),
    (["glrt-abcdefghijklmnopqrst"], "abcdefghij"),
    (["gsk_abcdefghijklmnopqrstuvwxyz"], "abcdefghij"),
    (["FwoGZXIvYXdzE" + "Ab3dEf6hIj9l" * 6], "Ab3dEf6hIj9l"),
    (["dapi0123456789abcdef0123456789abcdef"], "0123456789"),
]


@pytest.mark.parametrize(("words", "secret"), PLANTED, ids=[words[0][:24] for words, _ in PLANTED])
def test_every_planted_secret_is_masked(words: list[str], secret: str) -> None:
    clean = redact_words(["python", "train.py", *words, "--epochs", "3"])
    assert secret not in " ".join(clean)
    assert MASK in " ".join(clean)
    assert clean[:2] == ["python", "train.py"] and clean[-2:] == ["--epochs", "3"]


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "--data", "/data/imagenet/train", "--batch-size", "256", "--lr", "0.1"],
        ["python", "train.py", "--max-tokens", "512", "--num-tokens=8", "--cls-token", "--tokens-per-sample", "77"],
        ["python", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"],
        ["python", "train.py", "--commit", "0123456789abcdef0123456789abcdef01234567"],
        ["python", "train.py", "--data=s3://bucket/path/to/shards", "--key-frames", "3", "--monkey", "x"],
        ["python", "train.py", "/mnt/very/long/Path/To/Some/ImageNet2012/Train"],
        ["python", "train.py", "--config", "configs/resnet50_imagenet_8xb32_in1k_2024.py", "--auth-free"],
        ["python", "-u", "train.py", "--user", "me"],
        ["ssh", "git@host", "https://example.org/a?page=2&sort=name"],
        ["docker", "run", "-u", "1000:1000", "-p", "80:80", "image:latest"],
        ["python", "train.py", "--key", "label", "--sort-key=name", "--no-auth", "train", "--key", "image_jpg_2012"],
        ["python", "train.py", '{"lr": 0.1, "max_tokens": 512, "keys": ["image"]}', "[1, 2]", '{"not": json'],
        [
            "python",
            "train.py",
            "--data",
            "http://localhost:9000/bucket/images@2x/train.tar",
            "http://a:9000/b,http://me@d:9000/f@g",
        ],
        ["python", "-c", "print('token', 'class')", "--numTokens", "3", "--min_tokens=1", "author=me", "pattern=x*"],
    ],
)
def test_ordinary_command_lines_stay_as_they_are(words: list[str]) -> None:
    assert redact_words(words) == words


def test_text_around_a_secret_stays() -> None:
    assert redact_text("opened s3://bucket/a with key_id 7; password=hunter2, then read") == (
        f"opened s3://bucket/a with key_id 7; password={MASK}, then read"
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            "hint: headrace run -- python train.py --token abc --epochs 3",
            f"hint: headrace run -- python train.py --token {MASK} --epochs 3",
        ),
        ("unrecognized arguments: --api-key=abc", f"unrecognized arguments: --api-key={MASK}"),
        ("no such file: /w/http:/me:abc@host/data", f"no such file: /w/http:/me:{MASK}@host/data"),
        ("sh -c 'curl --password abc'", f"sh -c 'curl --password {MASK}'"),
        ("--max-tokens 512 --password yes -u train.py", "--max-tokens 512 --password yes -u train.py"),
    ],
)
def test_command_lines_and_paths_in_messages_are_masked(text: str, clean: str) -> None:
    assert redact_text(text) == clean
