#!/bin/bash
# bash headrace-pack.sh        50 jobs pack a part each into the file system; the one that finishes last writes index and manifest.
set -eu
aws batch register-job-definition --region us-east-1 --cli-input-json '{
 "jobDefinitionName": "headrace-pack",
 "type": "container",
 "timeout": {
  "attemptDurationSeconds": 86400
 },
 "retryStrategy": {
  "attempts": 3
 },
 "containerProperties": {
  "image": "IMAGE",
  "jobRoleArn": "ROLE",
  "resourceRequirements": [
   {
    "type": "VCPU",
    "value": "8"
   },
   {
    "type": "MEMORY",
    "value": "16384"
   }
  ],
  "command": [
   "/bin/sh",
   "-c",
   "exec headrace pack s3://bucket/raw /packed/imagenet --unit $AWS_BATCH_JOB_ARRAY_INDEX/50"
  ],
  "volumes": [
   {
    "name": "packed",
    "efsVolumeConfiguration": {
     "fileSystemId": "fs-ID"
    }
   }
  ],
  "mountPoints": [
   {
    "sourceVolume": "packed",
    "containerPath": "/packed"
   }
  ]
 }
}'
aws batch submit-job --region us-east-1 --cli-input-json '{
 "jobName": "headrace-pack",
 "jobQueue": "QUEUE",
 "jobDefinition": "headrace-pack",
 "arrayProperties": {
  "size": 50
 }
}'
