# Sourced by the job before the ranks start. Put what your environment needs here.
export HF_HUB_OFFLINE=1
