#!/bin/bash
# bash headrace-pack.sh        One instance packs from S3 to S3; given again under a new name, it goes on.
set -eu
aws sagemaker create-processing-job --region us-east-1 --cli-input-json '{
 "ProcessingJobName": "headrace-pack",
 "RoleArn": "ROLE",
 "AppSpecification": {
  "ImageUri": "IMAGE",
  "ContainerEntrypoint": [
   "headrace",
   "pack",
   "s3://bucket/raw",
   "s3://bucket/packed"
  ]
 },
 "ProcessingResources": {
  "ClusterConfig": {
   "InstanceType": "ml.c5.9xlarge",
   "InstanceCount": 1,
   "VolumeSizeInGB": 500
  }
 },
 "StoppingCondition": {
  "MaxRuntimeInSeconds": 86400
 }
}'
