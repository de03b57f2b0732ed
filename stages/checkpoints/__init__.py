"""The state of a training, from which it resumes: read, written to files, restored, forked."""
