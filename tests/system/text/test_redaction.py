"""Secrets never leave: each kind is masked by its name or its shape, and ordinary command lines stay as they are."""

from __future__ import annotations

import time
from base64 import b64encode

import pytest
from headrace.system.text.redaction import MASK, redact_text, redact_words

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
    # Options and variables of training scripts and trackers: Trainer, W&B, MLflow, Neptune, Comet, ClearML, Kaggle, …
    (["--hub_token", "hunter2"], "hunter2"),
    (["--push_to_hub_token=hunter2"], "hunter2"),
    (["--hf_auth_token", "hunter2"], "hunter2"),
    (["--use_auth_token", "hunter2"], "hunter2"),
    (["--huggingface_token", "hunter2"], "hunter2"),
    (["--huggingface-login", "hunter2"], "hunter2"),
    (["HF_TOKEN=hunter2"], "hunter2"),
    (["HUGGING_FACE_HUB_TOKEN=hunter2"], "hunter2"),
    (["--wandb_key", "08b3c93b"], "08b3c93b"),
    (["--wandb_api_key=08b3c93b"], "08b3c93b"),
    (["--wandb_login", "hunter2"], "hunter2"),
    (["--wandb-login=hunter2"], "hunter2"),
    (["wandb.api_key=hunter2"], "hunter2"),
    (["+logger.wandb.key=Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["--mlflow-tracking-uri", "https://me:hunter2@mlflow.example.org"], "hunter2"),
    (["MLFLOW_TRACKING_PASSWORD=hunter2"], "hunter2"),
    (["MLFLOW_TRACKING_TOKEN=hunter2"], "hunter2"),
    (["--neptune_api_token", "hunter2"], "hunter2"),
    (["NEPTUNE_API_TOKEN=hunter2"], "hunter2"),
    (["--comet-api-key", "hunter2"], "hunter2"),
    (["--comet_key", "hunter2"], "hunter2"),
    (["COMET_API_KEY=hunter2"], "hunter2"),
    (["CLEARML_API_ACCESS_KEY=hunter2"], "hunter2"),
    (["CLEARML_API_SECRET_KEY=hunter2"], "hunter2"),
    (["KAGGLE_KEY=hunter2"], "hunter2"),
    (["--kaggle-key", "hunter2"], "hunter2"),
    (["--roboflow_key", "hunter2"], "hunter2"),
    (["--openai-api-key", "hunter2"], "hunter2"),
    (["-k", "Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["--telegram-token", "1234567:hunter2"], "hunter2"),
    (["--slack_webhook_url=https://a.example.org/hunter2"], "hunter2"),
    (["--webhook", "https://a.example.org/hunter2"], "hunter2"),
    (["AZURE_STORAGE_KEY=hunter2"], "hunter2"),
    (["AZURE_STORAGE_SAS_TOKEN=hunter2"], "hunter2"),
    (["--minio-secret", "hunter2"], "hunter2"),
    (["--minio-access-key", "hunter2"], "hunter2"),
    (["--s3-secret-key", "hunter2"], "hunter2"),
    (["--storage-options", '{"key": "Ab3dEf6hIj9l", "secret": "hunter2"}'], "hunter2"),
    (["--db-pass", "hunter2"], "hunter2"),
    (["--dbPass", "hunter2"], "hunter2"),
    (["--master_pass=hunter2"], "hunter2"),
    (["PGPASSWORD=hunter2"], "hunter2"),
    (["MYSQL_PWD=hunter2"], "hunter2"),
    (["SSHPASS=hunter2"], "hunter2"),
    (["--optuna-storage", "mysql://me:hunter2@db/optuna"], "hunter2"),
    (["--redis_url=redis://default:hunter2@cache:6379"], "hunter2"),
    (["--private-key", "hunter2"], "hunter2"),
    (["--encryption_key=hunter2"], "hunter2"),
    (["--license-key", "hunter2"], "hunter2"),
    # Each of these was shown before.
    (["--pin", "4711"], "4711"),
    (["--pin", "hunter2"], "hunter2"),
    (["--user-pin=4711"], "4711"),
    (["--signature", "hunter2"], "hunter2"),
    (["--request-signature=3f2a9c"], "3f2a9c"),
    (["configure", "set", "password", "hunter2"], "hunter2"),
    (["ngrok", "authtoken", "hunter2"], "hunter2"),
    (["--password", "correct", "horse", "hunter2"], "horse"),
    (["--auth", "me", "hunter2"], "hunter2"),
    (["mysql", "-u", "me", "-phunter2", "db"], "hunter2"),
    (["/usr/bin/sshpass", "-phunter2", "ssh", "host"], "hunter2"),
    (["docker", "login", "-u", "me", "-phunter2", "registry"], "hunter2"),
    (["bash", "-c", "mysqldump -u me -phunter2 db > x"], "hunter2"),
    (["bash", "-c", r"tool --password hunt\ er2"], "er2"),
    (["the password hunter2 was refused"], "hunter2"),
    (["--otp", "123456"], "123456"),
    (["--token", "123456"], "123456"),
    (["--password", "12"], "12"),
    (["--api-key", "12345"], "12345"),
    (['{"pin": 4711}'], "4711"),
    (["-HAuthorization: Bearer hunter2"], "hunter2"),
    (["-H", "Cookie: theme=dark; sid=hunter2"], "hunter2"),
    (["--password=a,hunter2"], "hunter2"),
    (["--set", "auth.password=a;hunter2"], "hunter2"),
    (["--password=a}]hunter2"], "hunter2"),
    (["--password=correct horse hunter2"], "hunter2"),
    (["DB_PASSWORD=a)hunter2"], "hunter2"),
    (["--cred", "hunter2"], "hunter2"),
    (["--creds=hunter2"], "hunter2"),
    (["--passwort", "hunter2"], "hunter2"),
    (["--contraseña=hunter2"], "hunter2"),
    (["--mot-de-passe", "hunter2"], "hunter2"),
    (["--login", "me:hunter2"], "hunter2"),
    (["-x", "me:hunter2@proxy:3128"], "hunter2"),
    (["--dsn=me:hunter2@db.example.org/x"], "hunter2"),
    (["//me:hunter2@db.example.org/x"], "hunter2"),
    (["https://api.telegram.org/bot123456789:AAhunter2hunter2hunter2hunter2hunt/send"], "hunter2"),
    (["--env", '[{"name": "DB_PASSWORD", "value": "hunter2"}]'], "hunter2"),
    (["--env", '{"Name":"WANDB_API_KEY","Value":"hunter2"}'], "hunter2"),
    (["--environment", "Name=WANDB_API_KEY,Value=hunter2"], "hunter2"),
    (["wandb", "login", "--relogin", "08b3c93b08b3c93b08b3c93b08b3c93b08b3c93b"], "08b3c93b"),
    (["wandb", "login", "08b3c93b08b3c93b08b3c93b08b3c93b08b3c93b"], "08b3c93b"),
    (["redis-cli", "-a", "hunter2"], "hunter2"),
    (["/usr/bin/mongosh", "-u", "me", "-p", "hunter2"], "hunter2"),
    # Each of these was shown before, too.
    (["https://me:p@hunter2@host/x"], "hunter2"),
    (["https://me@corp.example:hunter2@host/x"], "hunter2"),
    (["proxy", "me:p@hunter2@host:3128"], "hunter2"),
    (['--secret="hunter2"'], "hunter2"),
    (['--secret="correct hunter2"'], "hunter2"),
    (["bash", "-c", 'train --secret="correct hunter2"'], "hunter2"),
    (["--pswd", "hunter2"], "hunter2"),
    (["--db_pswd=hunter2"], "hunter2"),
    (["curl", "-b", "sid=hunter2", "https://host"], "hunter2"),
    (["bash", "-c", "curl -s -b 'sid=hunter2' https://host"], "hunter2"),
    (["hvs.CAESIAbcdefGhijklMnopqrstuv0123456789"], "CAESIAb"),
    (["hvb.AAAAAQAbcdefGhijklMnopqrstuv0123456789"], "AAAAAQ"),
    (["MTIzNDU2Nzg5MDEyMzQ1Njc4.GabcdE.abcdefghijklmnopqrstuvwxyz0123456789AB"], "abcdefghij"),
    (["AGE-SECRET-KEY-1QYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGP"], "QYQSZ"),
    (["key-0123456789abcdef0123456789abcdef"], "0123456789"),
    (["0123456789abcdef0123456789abcdef-01234567-89abcdef"], "0123456789"),
    (["SK0123456789abcdef0123456789abcdef"], "0123456789"),
    ([b64encode(b'{"type": "service_account", "private_key": "x", "client": "abcdefghijkl"}').decode()], "eyJ0eXBl"),
    (["--sa", b64encode(b'{\n  "type": "service_account",\n  "private_key_id": "0123456789abcdef"}').decode()], "ewog"),
    (["-t", "Ab3dEf6hIj9l"], "Ab3dEf6hIj9l"),
    (["--wandb", "0123456789abcdef0123456789abcdef01234567"], "0123456789"),
    (["--wandb=0123456789abcdef0123456789abcdef01234567"], "0123456789"),
    (["bash", "-c", "train --wandb 0123456789abcdef0123456789abcdef01234567"], "0123456789"),
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
        # Numbers that count; each of the first four lines was masked before.
        ["--reg-tokens", "4", "--reg_tokens=4", "--register-tokens", "4", "--n_register_tokens", "4"],
        ["--pat", "5", "--es-pat=10", "--pat", "150", "--pat", "*.jpg", "--smoothing_pass", "3", "--pass", "2"],
        ["--compat", "numpy", "--bypass", "bn", "--spin", "fast", "--repat", "a", "--texsas", "a"],
        ["--placeholder_token", "<cat-toy>", "--initializer_token", "toy", "--modifier_token", "<new1>"],
        ["--num-tokens", "8", "--token-size", "16", "--token_dim=64", "--token-mixer", "pool", "--tokens-csv", "x"],
        ["--tokens", "1e9", "--train-tokens=300000000000", "--tokens", "10B", "--warmup_tokens", "375,000,000"],
        ["--token_label_size", "14", "--token-label", "--tokenizer", "bert", "--tokenizer_name=bert", "--token-env", "HF"],
        ["--tf_num_tokens", "8", "--max_new_tokens", "384", "--max-output-tokens=16384", "--n-cls-tokens", "1"],
        ["--cls_token", "avg", "--dist-token", "mean", "--mask_token", "[MASK]", "--stop-tokens", "</s>", "--img_token", "x"],
        ["--use_auth_token", "True", "--token", "true", "--use-pin", "train", "--no-password", "train", "--pin", "1"],
        ["--signature", "serving_default", "--signature=image_feature_vector", "--signature", "default"],
        # timm
        ["train.py", "--data-dir", "/d", "--model", "vit_reg4_b16_256", "--class-map", "c.txt", "--pin-mem", "--amp"],
        ["--opt-betas", "0.9", "0.999", "--patience-epochs", "10", "--seed", "42", "--worker-seeding", "all"],
        ["--drop-path", "0.1", "--bce-target-thresh", "0.2", "--model-kwargs", "reg_tokens=4", "class_token=false"],
        ["--model-kwargs", "global_pool=token", "--gp", "token", "--head-init-scale", "1.0", "--input-key", "jpg;png"],
        ["--target-key", "cls", "--wandb-project", "p", "--wandb-tags", "a", "b", "--wandb-resume-id", "ab12cd34"],
        ["--naflex-train-seq-lens", "128", "256", "--naflex-max-seq-len", "576", "--patch-drop-rate", "0.5"],
        # torchvision
        ["--data-path", "/d", "--wd", "2e-5", "--norm-weight-decay", "0", "--auto-augment", "ta_wide", "--ra-reps", "4"],
        ["--dist-url", "env://", "--world-size", "2", "--weights", "ResNet50_Weights.IMAGENET1K_V2", "--test-only"],
        ["--cache-dataset", "--sync-bn", "--use-deterministic-algorithms", "--interpolation", "bilinear"],
        # detectron2, mmengine
        ["--config-file", "a.yaml", "--num-gpus", "8", "--dist-url", "tcp://127.0.0.1:5", "MODEL.WEIGHTS", "a.pkl"],
        ["SOLVER.BASE_LR", "0.01", "DATASETS.TRAIN", "('coco',)", "INPUT.MASK_FORMAT=bitmask", "OUTPUT_DIR", "o"],
        ["--cfg-options", "optim_wrapper.optimizer.lr=0.1", "model.keypoint_head.num_tokens=8", "key_transform=id"],
        # Trainer, accelerate
        ["--hub_model_id", "me/x", "--push_to_hub", "--include_num_input_tokens_seen", "True", "--token_type_ids", "x"],
        ["--include_tokens_per_second", "--pad_to_max_length", "--hub_strategy", "every_save", "--run_name=a"],
        ["--mixed_precision", "bf16", "--main_process_port", "29500", "--rdzv_id", "ab12", "--rdzv_endpoint=h:29400"],
        # trackers
        ["--wandb_entity", "me", "--wandb_user", "me", "--wandb_run_id", "3f2a9c", "--wandb_mode", "offline"],
        ["--wandb_key", "none", "--wandb_login", "True", "--wandb-login=false", "--comet-project", "p", "--comet_model=m"],
        ["--mlflow_uri", "http://54.86.215.8:8050", "--mlflow_run_name", "a", "--mlflow-tracking-uri=sqlite:///mlflow.db"],
        ["--neptune_project", "me/p", "--neptune_tags", "a", "b", "--neptune", "async", "--clearml_task", "t"],
        ["docker", "run", "registry.example.org/a/b:1.2@sha256:0123456789abcdef", "mailto:me@example.org", "a:b@c"],
        ["--env", '[{"name": "EPOCHS", "value": "3"}]', "Name=EPOCHS,Value=3", "--creditor", "a", "--accredited", "b"],
        ["scp", "host:/data/a@b.jpg", "user@host:/data", "--images", "img:0001@2x.png", "wandb", "login", "--anonymously"],
        ["ssh", "-p22", "host", "mkdir", "-p", "out", "docker", "run", "-p8080:80", "image"],
        ["--storage", "mysql", "-pretrained", "-path", "data", "huggingface-cli", "login", "-profile", "me"],
        ["nvidia-smi", "-pm", "1", "--key-frame", "3", "--sort-keys", "--keys", "image", "label", "--label-key", "cls"],
    ],
)
def test_ordinary_command_lines_stay_as_they_are(words: list[str]) -> None:
    assert redact_words(words) == words
    assert redact_text(" ".join(words)) == " ".join(words)


def test_text_around_a_secret_stays() -> None:
    assert redact_words(["bash", "-c", "PGPASSWORD=hunter2 python train.py --lr 0.1"])[2] == (
        f"PGPASSWORD={MASK} python train.py --lr 0.1"
    )
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


LONG = [
    *("a", "a.", "a-", ".-a", "a=", "key=", "token=true=", "a:", "a:/", "a:/b:", "a:/b:c@", "@", "eyJ", "-eyJ", "_", "'a_"),
    *("-u a", "--a ", 'token=\\"', "?key=", "?token", "-----BEGIN ", "https://a.", "mysql ", "{[", "password ", "a/", "AKIA"),
    *("wandb", "wandb.", "a.wandb-", "://a:b@c", "://a@b", "curl -b", "M.", "eyJ0eXBl/", "key-", "hvs.", "0-0123456789abcdef"),
    *("a:b@", "//a:", "cookie:", "name=token,", "name=a,value=", "1:AA"),
    *("SG.", "=[ ", "\\", "'", '"'),
]


@pytest.mark.matrix(keep=10)
@pytest.mark.parametrize("unit", LONG)
def test_a_very_long_word_takes_time_in_proportion_to_its_length(unit: str) -> None:
    """CPU time of four times the text: four times as much, where it grows with the square sixteen times."""

    def cpu_s(characters: int) -> float:
        text = unit * (characters // len(unit))
        start = time.process_time()
        redact_text(text)
        redact_words([text])
        return time.process_time() - start

    cpu_s(1_000)
    short, long = min(cpu_s(10_000) for _ in range(2)), min(cpu_s(40_000) for _ in range(2))
    assert long < 10 * max(short, 0.01)


@pytest.mark.parametrize("word", ["-p", "-u", "--opt", "data/a.jpg", "login"])
def test_a_command_of_very_many_words_takes_time_in_proportion_to_their_number(word: str) -> None:
    def cpu_s(count: int) -> float:
        start = time.process_time()
        redact_words([word] * count)
        return time.process_time() - start

    short, long = min(cpu_s(1_000) for _ in range(2)), min(cpu_s(8_000) for _ in range(2))
    assert long < 20 * max(short, 0.01), "with the square of their number it takes 64 times as long"


def test_a_secret_at_the_end_of_a_very_long_word_is_masked() -> None:
    text = "a." * 100_000 + "token=hunter2"
    assert redact_text(text) == text.replace("hunter2", MASK)
    assert "hunter2" not in redact_text('{"a": "' + "x" * 300_000 + '", "api_key": "hunter2"}')
