# headrace in a container of your own for SageMaker, with its entry as the first process.
#
#   make wheel && docker build -f examples/sagemaker.Dockerfile -t headrace-sagemaker .      in a checkout of headrace
#   docker push …                                                   to a repository of ECR that the job's role may read
#   headrace launch sagemaker --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/headrace-sagemaker:1 …
#
# The base is AWS's PyTorch container, which headrace launch uses by default: log in to its registry first
#   aws ecr get-login-password --region us-east-1 | docker login --username AWS --password-stdin 763104351884.dkr.ecr.us-east-1.amazonaws.com
ARG BASE=763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker
FROM ${BASE}
COPY dist/headrace-*_x86_64.whl /wheels/
# hadolint ignore=DL3013
RUN python -m pip install --no-cache-dir "$(echo /wheels/headrace-*.whl)[train,aws]"
# A script of your own:  COPY train.py /opt/ml/code/  and  ENV HEADRACE_SCRIPT=train.py
# Exec form, without a shell: SIGTERM reaches the entry, which hands it on.
ENTRYPOINT ["python", "-m", "headrace.launch.entry"]
