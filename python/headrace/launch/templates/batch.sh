#!/bin/bash
# bash §{name}.sh        §{units} jobs pack a part each into the file system; the one that finishes last writes index and manifest.
set -eu
aws batch register-job-definition --region §{region} --cli-input-json '{
 "jobDefinitionName": "§{name}",
 "type": "container",
 "timeout": {
  "attemptDurationSeconds": §{limit_s}
 },
 "retryStrategy": {
  "attempts": 3
 },
 "containerProperties": {
  "image": §{image},
  "jobRoleArn": §{role},
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
   §{command}
  ],
  "volumes": [
   {
    "name": "packed",
    "efsVolumeConfiguration": {
     "fileSystemId": §{file_system}
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
aws batch submit-job --region §{region} --cli-input-json '{
 "jobName": "§{name}",
 "jobQueue": §{queue},
 "jobDefinition": "§{name}",
 "arrayProperties": {
  "size": §{units}
 }
}'
