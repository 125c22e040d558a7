#!/bin/bash
# bash §{name}.sh        One instance packs from S3 to S3; given again under a new name, it goes on.
set -eu
aws sagemaker create-processing-job --region §{region} --cli-input-json '{
 "ProcessingJobName": "§{name}",
 "RoleArn": §{role},
 "AppSpecification": {
  "ImageUri": §{image},
  "ContainerEntrypoint": §{entrypoint}
 },
 "ProcessingResources": {
  "ClusterConfig": {
   "InstanceType": §{instance},
   "InstanceCount": 1,
   "VolumeSizeInGB": 500
  }
 },
 "StoppingCondition": {
  "MaxRuntimeInSeconds": §{limit_s}
 }
}'
