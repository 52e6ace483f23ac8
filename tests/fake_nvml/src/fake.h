/* What the files of this library share: the parsed state, and the gate every call goes through.
 *
 * The library knows nothing about GPU models. All it answers comes from the state file; a key
 * that is not there answers NVML_ERROR_NOT_SUPPORTED. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_LINKS 36
#define TEXT 96
#define NO_INSTANCE 0xFFFFFFFFu
#define SAMPLE_RING 120

#define FLOW(name) K_##name,
#define LEVEL(name)
#define COUNT_ECC(name)
enum {
#include "keys.def"
    FLOWS
};
#undef FLOW
#undef LEVEL
#undef COUNT_ECC

#define FLOW(name)
#define LEVEL(name) K_##name,
#define COUNT_ECC(name) \
    K_ecc_corrected_volatile_##name, K_ecc_corrected_aggregate_##name, K_ecc_uncorrected_volatile_##name, \
        K_ecc_uncorrected_aggregate_##name,
enum key {
    LEVELS_START = FLOWS - 1,
#include "keys.def"
    KEYS
};
#undef FLOW
#undef LEVEL
#undef COUNT_ECC

struct phase { /* from `at` on, the flows have these values; `total` is their integral up to `at` */
    int64_t at;
    double value[FLOWS];
    double total[FLOWS];
};

struct process {
    unsigned pid;
    char kind;                 /* C compute, G graphics, M MPS client */
    unsigned long long memory; /* NVML_VALUE_NOT_AVAILABLE when the driver will not say */
    unsigned gi, ci;
    double share;       /* part of the GPU's activity that is this process' */
    int64_t start, end; /* end 0: still running */
    char *name;         /* NULL: already gone when its name is asked for */
};

struct mig {
    char uuid[TEXT];
    char profile[32];
    unsigned index; /* among the GPU's MIG devices; there may be holes */
    unsigned gi, ci, gi_slices, ci_slices, sms, copy, decoders, encoders, jpegs, ofas;
    unsigned long long memory_total, memory_used;
    double busy; /* percent, for GPM, */
    int64_t busy_since;
    double busy_total; /* and its integral up to then */
};

struct link {
    bool down;
    unsigned long long crc_flit, crc_data, replay, recovery, ecc;
};
struct peer { /* what P2P over NVLink answers towards another GPU */
    char uuid[TEXT];
    nvmlReturn_t error;
    int status;
};
struct page {
    int cause;
    unsigned long long address, timestamp;
};
struct field {
    unsigned id, scope;
    nvmlReturn_t status;
    char type;
    double value;
};
struct fault {
    char function[64];
    char uuid[TEXT];
    int error;
};
struct delay {
    char function[64];
    long us;
};
struct xid {
    long seq;
    char uuid[TEXT];
    unsigned long long code;
    unsigned gi, ci;
};

#define LIST(type, name) \
    struct { \
        type *items; \
        size_t count; \
    } name

struct gpu {
    double value[KEYS];
    bool has[KEYS];
    char uuid[TEXT], name[TEXT], serial[TEXT], part_number[TEXT], vbios[TEXT];
    char inforom_image[TEXT], inforom_oem[TEXT], inforom_ecc[TEXT], inforom_power[TEXT];
    char gsp_version[TEXT], fabric_cluster[TEXT], chassis[TEXT];
    struct link links[MAX_LINKS];
    LIST(struct phase, phases);
    LIST(struct process, processes);
    LIST(struct mig, migs);
    LIST(struct peer, peers);
    LIST(struct page, pages);
    LIST(struct field, fields);
};

struct state {
    nvmlReturn_t driver; /* what nvmlInit answers */
    long epoch;          /* counts driver reloads: an older session is uninitialised */
    int64_t clock_us;    /* a test's clock, or 0 for the machine's */
    long sample_period_us;
    int cuda_version;
    char driver_version[TEXT], nvml_version[TEXT];
    unsigned gpu_count;
    struct gpu gpus[MAX_GPUS];
    LIST(struct fault, faults);
    LIST(struct fault, hangs);
    LIST(struct delay, delays);
    LIST(struct xid, xids);
};

/* state.c */
struct state *state_parse(char *text);
void state_free(struct state *state);

/* timeline.c: t in microseconds of the Unix epoch */
double flow_at(const struct gpu *gpu, int flow, int64_t t);
double flow_total(const struct gpu *gpu, int flow, int64_t t); /* unit × seconds */
double flow_mean(const struct gpu *gpu, int flow, int64_t from, int64_t to);
double flow_recent(const struct gpu *gpu, int flow, int64_t span_us);
double flow_sampled(const struct gpu *gpu, int flow);

/* work.c: what the fake CUDA driver did, in the same units */
double work_at(const struct gpu *gpu, int flow, int64_t t);
double work_total(const struct gpu *gpu, int flow, int64_t t);

/* calls.c: with the gate's lock held */
void calls_follow(const char *state_path);
void calls_leave(void);
void calls_count(const char *function);

/* gate.c */
extern struct state *fake; /* only between ENTER and return */
extern int64_t fake_now;

struct call {
    nvmlReturn_t error;
    struct gpu *gpu;
    struct mig *mig;
};
struct call gate_enter(const char *function, nvmlDevice_t device, bool mig_allowed);
struct call gate_enter_system(const char *function);
void gate_leave(struct call *call);

#define HELD __attribute__((cleanup(gate_leave)))
#define ENTER_AS(opened) \
    HELD struct call call = (opened); \
    if (call.error) \
        return call.error; \
    struct gpu *gpu = call.gpu; \
    (void)gpu
#define ENTER(device) ENTER_AS(gate_enter(__func__, device, false))
#define ENTER_ANY(device) ENTER_AS(gate_enter(__func__, device, true))
#define ENTER_SYSTEM() ENTER_AS(gate_enter_system(__func__))

/* handles.c: call with the gate entered */
struct slot;
struct slot *handle_for(const char *uuid, bool is_mig);
const char *handle_uuid(nvmlDevice_t device);
bool handle_is_mig(nvmlDevice_t device);
nvmlReturn_t handle_resolve(nvmlDevice_t device, struct call *call);
void handles_snapshot(void);
unsigned handles_visible(void);
nvmlDevice_t handle_at(unsigned index);
nvmlDevice_t handle_by_uuid(const char *uuid);
nvmlDevice_t handle_of(const struct gpu *gpu);
void handles_forget_resolved(void);

static inline double value_of(const struct gpu *gpu, int key)
{
    return key < FLOWS ? flow_at(gpu, key, fake_now) : gpu->value[key];
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned length);

#define READ(key, out) \
    (!(out)           ? NVML_ERROR_INVALID_ARGUMENT \
     : !gpu->has[key] ? NVML_ERROR_NOT_SUPPORTED \
                      : (*(out) = (__typeof__(*(out)))value_of(gpu, key), NVML_SUCCESS))

#define GETTER(function, type, key) \
    nvmlReturn_t function(nvmlDevice_t device, type *out) \
    { \
        ENTER(device); \
        return READ(key, out); \
    }
#define GETTER_TEXT(function, member) \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) \
    { \
        ENTER(device); \
        return copy_text(gpu->member, out, length); \
    }
#define UNLESS(condition, error) \
    do { \
        if (!(condition)) \
            return (error); \
    } while (0)
#define CHECK_VERSION(pointer, expected) \
    do { \
        if (!(pointer)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
        if ((pointer)->version != (expected)) \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    } while (0)

/* To the nearest whole: sums of doubles end just below the number they mean. */
static inline unsigned long long rounded(double value)
{
    return value <= 0 ? 0 : (unsigned long long)(value + 0.5);
}

#endif
