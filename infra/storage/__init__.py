"""Files on this machine and objects in a bucket, for every part that stores bytes."""
