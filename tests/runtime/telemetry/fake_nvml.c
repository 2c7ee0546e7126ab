/* A libnvidia-ml with two GPUs and two MIG slices, told by files in $FAKE_NVML what to do:
   no-driver, mismatch, lost, hang, hidden (the first GPU, by a cgroup). The second GPU is an old
   one that supports little. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned number; } gpu;
static gpu gpus[4] = {{0}, {1}, {7}, {8}};
static const char *uuids[] = {"GPU-aaaa-1111", "GPU-aabb-2222"};
static const char *slices[] = {"MIG-cccc", "MIG-dddd"};

static int told(const char *word) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), word);
    return access(path, F_OK) == 0;
}

int nvmlInit_v2(void) { return told("no-driver") ? 9 : told("mismatch") ? 18 : 0; }
const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "?";
}
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, gpu **g) {
    if (n == 0 && told("hidden")) return 4; /* no permission */
    *g = &gpus[n];
    return n < 2 ? 0 : 2;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu **g) {
    for (int n = 0; n < 2; n++)
        if (!strcmp(uuid, slices[n])) return *g = &gpus[2 + n], 0;
    return 6;
}
int nvmlDeviceGetName(gpu *g, char *text, unsigned length) {
    snprintf(text, length, g->number >= 7 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200");
    return 0;
}
int nvmlDeviceGetUUID(gpu *g, char *text, unsigned length) {
    snprintf(text, length, "%s", g->number >= 7 ? slices[g->number - 7] : uuids[g->number]);
    return 0;
}
int nvmlDeviceGetUtilizationRates(gpu *g, unsigned *rates) {
    while (told("hang")) usleep(10000);
    if (g->number == 0 && told("lost")) return 15;
    if (g->number) return 3; /* not supported */
    rates[0] = 97, rates[1] = 40;
    return 0;
}
int nvmlDeviceGetMemoryInfo(gpu *g, unsigned long long *memory) {
    memory[0] = 1000, memory[1] = 400, memory[2] = 600;
    return 0;
}
int nvmlDeviceGetPowerUsage(gpu *g, unsigned *mw) { *mw = 650500; return g->number ? 3 : 0; }
int nvmlDeviceGetEnforcedPowerLimit(gpu *g, unsigned *mw) { *mw = 700000; return g->number ? 3 : 0; }
int nvmlDeviceGetTemperature(gpu *g, unsigned sensor, unsigned *c) { *c = 61; return sensor; }
