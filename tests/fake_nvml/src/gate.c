/* The gate every call goes through: it takes the lock, reloads a changed state file, and applies
 * what the scenario does to calls: delay, hang, fault, lost GPU, unloaded driver.
 *
 * A change is noticed at once through a counter that the test's side keeps in a memory-mapped file
 * beside the state (no system call per NVML call); without that file, by stat every 50 ms. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct state *fake;
int64_t fake_now;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int session_count;
static long session_epoch;

static const char *path;
static const volatile uint64_t *generation;
static uint64_t seen_generation;
static struct stat seen_file;
static int64_t next_stat;

static int64_t machine_now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void map_generation(void)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.generation", path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof *generation, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        generation = page;
}

static char *read_whole(void)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &seen_file) < 0) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    char *text = malloc((size_t)seen_file.st_size + 1);
    ssize_t length = 0, got;
    while (text && length < seen_file.st_size &&
           (got = read(fd, text + length, (size_t)(seen_file.st_size - length))) > 0)
        length += got;
    if (text)
        text[length] = 0;
    close(fd);
    return text;
}

static bool file_changed(void)
{
    int64_t now = machine_now(CLOCK_MONOTONIC);
    if (now < next_stat)
        return false;
    next_stat = now + 50000;
    struct stat file;
    return !stat(path, &file) && (file.st_ino != seen_file.st_ino || file.st_size != seen_file.st_size ||
                                  file.st_mtim.tv_nsec != seen_file.st_mtim.tv_nsec ||
                                  file.st_mtim.tv_sec != seen_file.st_mtim.tv_sec);
}

static void load(void)
{
    char *text = read_whole();
    if (!text)
        return;
    struct state *fresh = state_parse(text);
    free(text);
    state_free(fake);
    fake = fresh;
    handles_forget_resolved();
}

static void follow(const char *file)
{
    path = file;
    map_generation();
    calls_follow(path);
    if (generation)
        seen_generation = *generation;
    load();
}

static void refresh(void)
{
    const char *named = path ? NULL : getenv("FAKE_NVML_STATE");
    if (named)
        follow(named);
    if (!fake) { /* no state file: a library without a driver */
        char none[] = "driver 9";
        fake = state_parse(none);
    }
    uint64_t current = generation ? *generation : 0;
    if (path && (generation ? current != seen_generation : file_changed())) {
        seen_generation = current;
        load();
    }
    fake_now = fake->clock_us ? fake->clock_us : machine_now(CLOCK_REALTIME);
}

/* Clients unload the library between two sessions: what it holds must not stay behind in their memory.
 * The lock is kept: at a process' exit a call that hangs must not wake to a state that is gone. */
__attribute__((destructor)) static void leave(void)
{
    if (pthread_mutex_trylock(&lock))
        return;
    state_free(fake);
    fake = NULL;
    if (generation)
        munmap((void *)(uintptr_t)generation, sizeof *generation);
    generation = NULL;
    calls_leave();
}

/* For tests that load the library into their own process: follow this file from now on. */
void fake_use_state(const char *file);
void fake_use_state(const char *file)
{
    static char kept[4096];
    pthread_mutex_lock(&lock);
    snprintf(kept, sizeof kept, "%s", file);
    if (generation)
        munmap((void *)(uintptr_t)generation, sizeof *generation);
    generation = NULL;
    session_count = 0;
    follow(kept);
    pthread_mutex_unlock(&lock);
}

/* nvmlDeviceGetCount_v2 answers to its own name and to nvmlDeviceGetCount. */
static bool names(const char *pattern, const char *function)
{
    size_t length = strlen(pattern);
    if (!strcmp(pattern, "*"))
        return true;
    return !strncmp(pattern, function, length) && (!function[length] || !strncmp(function + length, "_v", 2));
}

static const struct fault *match(const struct fault *items, size_t count, const char *function,
                                 nvmlDevice_t device)
{
    for (size_t i = 0; i < count; i++)
        if (names(items[i].function, function) &&
            (!strcmp(items[i].uuid, "*") || (device && !strcmp(items[i].uuid, handle_uuid(device)))))
            return &items[i];
    return NULL;
}

/* The kernel lets a sleep run 50 µs over; the thread's allowance for that is narrowed meanwhile. */
static void pause_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    pthread_mutex_unlock(&lock);
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    prctl(PR_SET_TIMERSLACK, slack > 0 ? (unsigned long)slack : 0UL);
    pthread_mutex_lock(&lock);
    refresh();
}

/* Sleeps and hangs without the lock: one slow call must not slow the others. */
static void suffer(const char *function, nvmlDevice_t device)
{
    long us = 0;
    for (size_t i = 0; i < fake->delays.count; i++) /* the last matching line wins */
        if (names(fake->delays.items[i].function, function))
            us = fake->delays.items[i].us;
    if (us)
        pause_us(us);
    while (fake->hangs.count && match(fake->hangs.items, fake->hangs.count, function, device))
        pause_us(2000);
}

static nvmlReturn_t open_gate(const char *function, nvmlDevice_t device)
{
    pthread_mutex_lock(&lock);
    refresh();
    calls_count(function);
    if (fake->delays.count | fake->hangs.count)
        suffer(function, device);
    const struct fault *fault =
        fake->faults.count ? match(fake->faults.items, fake->faults.count, function, device) : NULL;
    return fault ? (nvmlReturn_t)fault->error : NVML_SUCCESS;
}

static nvmlReturn_t session_error(void)
{
    if (!session_count)
        return NVML_ERROR_UNINITIALIZED;
    if (fake->driver)
        return fake->driver;
    return session_epoch != fake->epoch ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

struct call gate_enter_system(const char *function)
{
    struct call call = {open_gate(function, NULL), NULL, NULL};
    if (!call.error)
        call.error = session_error();
    return call;
}

struct call gate_enter(const char *function, nvmlDevice_t device, bool mig_allowed)
{
    struct call call = {open_gate(function, device), NULL, NULL};
    if (call.error || (call.error = session_error()))
        return call;
    nvmlReturn_t error = handle_resolve(device, &call);
    if (!error && call.mig && !mig_allowed)
        error = NVML_ERROR_INVALID_ARGUMENT;
    call.error = error;
    return call;
}

void gate_leave(struct call *call)
{
    (void)call;
    pthread_mutex_unlock(&lock);
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned length)
{
    UNLESS(out, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(*text, NVML_ERROR_NOT_SUPPORTED);
    UNLESS(strlen(text) < length, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t begin(const char *function)
{
    HELD struct call call = {open_gate(function, NULL), NULL, NULL};
    UNLESS(!call.error, call.error);
    UNLESS(!fake->driver, fake->driver);
    if (session_count && session_epoch != fake->epoch)
        session_count = 0; /* the driver was reloaded under us: a new session begins */
    if (!session_count++) {
        session_epoch = fake->epoch;
        handles_snapshot();
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
    return begin("nvmlInit");
}
nvmlReturn_t nvmlInit_v2(void)
{
    return begin("nvmlInit");
}
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return begin("nvmlInit");
}

nvmlReturn_t nvmlShutdown(void)
{
    HELD struct call call = {open_gate(__func__, NULL), NULL, NULL};
    UNLESS(!call.error, call.error);
    UNLESS(session_count, NVML_ERROR_UNINITIALIZED);
    session_count--;
    return NVML_SUCCESS;
}

int fake_not_supported(const char *function);
/* For stubs.c, which cannot include nvml.h: its functions carry no prototypes. */
int fake_not_supported(const char *function)
{
    HELD struct call call = gate_enter_system(function);
    return call.error ? (int)call.error : NVML_ERROR_NOT_SUPPORTED;
}
