/* What the files of the fake CUDA driver share: devices, handles, the GPU's time, and the record of work.
 *
 * A launch takes as long as its own instructions and repetitions say; nothing here knows a kind of load. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_DEVICES 16
#define MAX_FAULTS 8
#define TEXT 96

struct device {
    char uuid[TEXT], name[TEXT];
    int major, minor, multiprocessors;
    size_t memory, used;
    int contexts;
    int64_t busy_until; /* microseconds of the Unix epoch: when the queued work ends */
};

struct mix { /* what a kernel's repeated block consists of */
    unsigned tensor, fp32, fp64, fp16, loads;
};

struct work_record { /* read by the fake NVML library: src/work.c there */
    char uuid[TEXT];
    int64_t start, end;
    double tensor, fp32, fp64, fp16, dram, pcie_tx_kbps, pcie_rx_kbps, nvlink_tx_kibps, sm;
};

extern struct device devices[MAX_DEVICES];
extern int device_count;

int64_t now_us(void);
void sleep_until(int64_t at);
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult enter(const char *function);
CUresult misuse(const char *function, const char *what);
struct device *current_device(void);
void add_work(struct device *device, int64_t start, int64_t end, struct work_record record);
int64_t queue_work(struct device *device, double seconds, struct work_record record);

#define ENTER() \
    do { \
        CUresult entered = enter(__func__); \
        if (entered) \
            return entered; \
    } while (0)
#define UNLESS(condition, code, what) \
    do { \
        if (!(condition)) { \
            misuse(__func__, what); \
            return (code); \
        } \
    } while (0)

#endif
