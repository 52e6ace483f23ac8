/* The state file: `key value…` lines in, a struct state out. Unknown keys abort the process with a
 * message: a misspelt key in a test must not look like "not supported". */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOW(name) #name,
#define LEVEL(name)
#define COUNT_ECC(name)
static const char *const flow_names[] = {
#include "keys.def"
};
#undef FLOW
#undef LEVEL
#undef COUNT_ECC
#define FLOW(name)
#define LEVEL(name) #name,
#define COUNT_ECC(name) \
    "ecc_corrected_volatile_" #name, "ecc_corrected_aggregate_" #name, "ecc_uncorrected_volatile_" #name, \
        "ecc_uncorrected_aggregate_" #name,
static const char *const level_names[] = {
#include "keys.def"
};

static struct {
    const char *name;
    int key;
} sorted[KEYS];

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int key_of(const char *name)
{
    if (!sorted[0].name) {
        for (int i = 0; i < KEYS; i++) {
            sorted[i].name = i < FLOWS ? flow_names[i] : level_names[i - FLOWS];
            sorted[i].key = i;
        }
        qsort(sorted, KEYS, sizeof *sorted, by_name);
    }
    const void *found = bsearch(&name, sorted, KEYS, sizeof *sorted, by_name);
    return found ? (int)((const __typeof__(*sorted) *)found)->key : -1;
}

static void reject(const char *what, const char *line)
{
    fprintf(stderr, "fake nvml: %s: %s\n", what, line);
    abort();
}

/* Grows a LIST by one zeroed item and gives its address. */
#define ADD(list) \
    (grow((void **)&(list).items, &(list).count, sizeof *(list).items), &(list).items[(list).count - 1])
static void grow(void **items, size_t *count, size_t size)
{
    if ((*count & (*count - 1)) == 0) /* at 0, 1, 2, 4, 8…: double the room */
        *items = realloc(*items, (*count ? *count * 2 : 1) * size);
    if (!*items)
        abort();
    memset((char *)*items + *count * size, 0, size);
    (*count)++;
}

/* Words are percent-encoded: a name may hold spaces, newlines or bytes that are no text at all. */
static char *decode(char *text)
{
    char *to = text;
    for (char *from = text; *from; from++, to++) {
        unsigned byte;
        if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) {
            *to = (char)byte;
            from += 2;
        } else {
            *to = *from;
        }
    }
    *to = 0;
    return text;
}

static char *word(char **rest)
{
    char *token;
    do
        token = strsep(rest, " ");
    while (token && !*token);
    return token ? token : "";
}
static double number(char **rest)
{
    return strtod(word(rest), NULL);
}
static unsigned long long whole(char **rest)
{
    return strtoull(word(rest), NULL, 0);
}
static unsigned instance(char **rest)
{
    const char *text = word(rest);
    return *text == '-' || !*text ? NO_INSTANCE : (unsigned)strtoul(text, NULL, 10);
}
static void text_to(char *out, size_t size, char **rest)
{
    snprintf(out, size, "%s", decode(word(rest)));
}

static void parse_phase(struct gpu *gpu, char *rest, const char *line)
{
    struct phase previous = {0};
    size_t count = gpu->phases.count;
    if (count)
        previous = gpu->phases.items[count - 1];
    struct phase *phase = ADD(gpu->phases);
    *phase = previous;
    phase->at = (int64_t)whole(&rest);
    for (int i = 0; count && i < FLOWS; i++)
        phase->total[i] += previous.value[i] * (double)(phase->at - previous.at) / 1e6;
    for (char *name = word(&rest); *name; name = word(&rest)) {
        bool base = *name == '+'; /* +flow: the counter's value where the timeline begins */
        int key = key_of(name + base);
        if (key < 0 || key >= FLOWS)
            reject("not a flow", line);
        double value = number(&rest);
        if (base)
            phase->total[key] = value;
        else
            phase->value[key] = value;
        gpu->has[key] = true;
    }
}

static void parse_process(struct gpu *gpu, char *rest)
{
    struct process *process = ADD(gpu->processes);
    process->pid = (unsigned)whole(&rest);
    process->kind = *word(&rest);
    char *memory = word(&rest);
    process->memory =
        *memory == '-' ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE : strtoull(memory, NULL, 10);
    process->gi = instance(&rest);
    process->ci = instance(&rest);
    process->share = number(&rest);
    process->start = (int64_t)whole(&rest);
    process->end = (int64_t)whole(&rest);
    char *name = word(&rest);
    process->name = strcmp(name, "-") ? strdup(decode(name)) : NULL;
}

static void parse_mig(struct gpu *gpu, char *rest)
{
    struct mig *mig = ADD(gpu->migs);
    text_to(mig->uuid, sizeof mig->uuid, &rest);
    text_to(mig->profile, sizeof mig->profile, &rest);
    mig->index = (unsigned)whole(&rest);
    mig->gi = instance(&rest);
    mig->ci = instance(&rest);
    mig->memory_total = whole(&rest);
    mig->memory_used = whole(&rest);
    mig->busy = number(&rest);
    mig->busy_since = (int64_t)whole(&rest);
    mig->busy_total = number(&rest);
    unsigned *const counts[] = {&mig->gi_slices, &mig->ci_slices, &mig->sms,   &mig->copy,
                                &mig->decoders,  &mig->encoders,  &mig->jpegs, &mig->ofas};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        *counts[i] = (unsigned)whole(&rest);
}

static void parse_link(struct gpu *gpu, char *rest, const char *line)
{
    unsigned long long index = whole(&rest);
    if (index >= MAX_LINKS)
        reject("no such link", line);
    struct link *link = &gpu->links[index];
    link->down = !whole(&rest);
    link->crc_flit = whole(&rest);
    link->crc_data = whole(&rest);
    link->replay = whole(&rest);
    link->recovery = whole(&rest);
    link->ecc = whole(&rest);
}

static void parse_field(struct gpu *gpu, char *rest)
{
    struct field *field = ADD(gpu->fields);
    field->id = (unsigned)whole(&rest);
    field->scope = instance(&rest);
    field->status = (nvmlReturn_t)whole(&rest);
    field->type = *word(&rest);
    field->value = number(&rest);
}

static void parse_peer(struct gpu *gpu, char *rest)
{
    struct peer *peer = ADD(gpu->peers);
    text_to(peer->uuid, sizeof peer->uuid, &rest);
    peer->error = (nvmlReturn_t)whole(&rest);
    peer->status = (int)whole(&rest);
}

static void parse_page(struct gpu *gpu, char *rest)
{
    struct page *page = ADD(gpu->pages);
    page->cause = (int)whole(&rest);
    page->address = whole(&rest);
    page->timestamp = whole(&rest);
}

#define TEXT_KEY(name) {#name, offsetof(struct gpu, name)}
static const struct {
    const char *key;
    size_t offset;
} text_keys[] = {
    TEXT_KEY(uuid),          TEXT_KEY(name),          TEXT_KEY(serial),         TEXT_KEY(part_number),
    TEXT_KEY(vbios),         TEXT_KEY(inforom_image), TEXT_KEY(inforom_oem),    TEXT_KEY(inforom_ecc),
    TEXT_KEY(inforom_power), TEXT_KEY(gsp_version),   TEXT_KEY(fabric_cluster), TEXT_KEY(chassis),
};

static bool parse_text(struct gpu *gpu, const char *key, char **rest)
{
    for (size_t i = 0; i < sizeof text_keys / sizeof *text_keys; i++)
        if (!strcmp(key, text_keys[i].key)) {
            text_to((char *)gpu + text_keys[i].offset, TEXT, rest);
            return true;
        }
    return false;
}

static void parse_gpu(struct state *state, char *line)
{
    char *rest = line, *dot;
    unsigned long index = strtoul(line + 3, &dot, 10);
    if (index >= MAX_GPUS || *dot != '.')
        reject("no such GPU", line);
    word(&rest);
    const char *key = dot + 1;
    struct gpu *gpu = &state->gpus[index];
    if (index >= state->gpu_count)
        state->gpu_count = (unsigned)index + 1;
    int number_key = key_of(key);
    if (number_key >= 0) {
        gpu->value[number_key] = number(&rest);
        gpu->has[number_key] = true;
    } else if (!strcmp(key, "at"))
        parse_phase(gpu, rest, line);
    else if (!strcmp(key, "process"))
        parse_process(gpu, rest);
    else if (!strcmp(key, "mig"))
        parse_mig(gpu, rest);
    else if (!strcmp(key, "link"))
        parse_link(gpu, rest, line);
    else if (!strcmp(key, "peer"))
        parse_peer(gpu, rest);
    else if (!strcmp(key, "page"))
        parse_page(gpu, rest);
    else if (!strcmp(key, "field"))
        parse_field(gpu, rest);
    else if (!parse_text(gpu, key, &rest))
        reject("unknown key", line);
}

static void parse_fault(struct fault *fault, char *rest)
{
    text_to(fault->function, sizeof fault->function, &rest);
    text_to(fault->uuid, sizeof fault->uuid, &rest);
    fault->error = (int)whole(&rest);
}

static void parse_system(struct state *state, char *line)
{
    char *rest = line;
    const char *key = word(&rest);
    if (!strcmp(key, "driver"))
        state->driver = (nvmlReturn_t)whole(&rest);
    else if (!strcmp(key, "epoch"))
        state->epoch = (long)whole(&rest);
    else if (!strcmp(key, "clock_us"))
        state->clock_us = (int64_t)whole(&rest);
    else if (!strcmp(key, "sample_period_us"))
        state->sample_period_us = (long)whole(&rest);
    else if (!strcmp(key, "cuda_version"))
        state->cuda_version = (int)whole(&rest);
    else if (!strcmp(key, "driver_version"))
        text_to(state->driver_version, TEXT, &rest);
    else if (!strcmp(key, "nvml_version"))
        text_to(state->nvml_version, TEXT, &rest);
    else if (!strcmp(key, "fault"))
        parse_fault(ADD(state->faults), rest);
    else if (!strcmp(key, "hang"))
        parse_fault(ADD(state->hangs), rest);
    else if (!strcmp(key, "delay")) {
        struct delay *delay = ADD(state->delays);
        text_to(delay->function, sizeof delay->function, &rest);
        delay->us = (long)whole(&rest);
    } else if (!strcmp(key, "xid")) {
        struct xid *xid = ADD(state->xids);
        xid->seq = (long)whole(&rest);
        text_to(xid->uuid, TEXT, &rest);
        xid->code = whole(&rest);
        xid->gi = instance(&rest);
        xid->ci = instance(&rest);
    } else
        reject("unknown key", line);
}

struct state *state_parse(char *text)
{
    struct state *state = calloc(1, sizeof *state);
    if (!state)
        abort();
    state->sample_period_us = 1000000 / 6;
    for (char *line = strsep(&text, "\n"); line; line = strsep(&text, "\n")) {
        if (!*line || *line == '#')
            continue;
        if (!strncmp(line, "gpu", 3))
            parse_gpu(state, line);
        else
            parse_system(state, line);
    }
    return state;
}

void state_free(struct state *state)
{
    if (!state)
        return;
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *gpu = &state->gpus[i];
        for (size_t p = 0; p < gpu->processes.count; p++)
            free(gpu->processes.items[p].name);
        free(gpu->phases.items);
        free(gpu->processes.items);
        free(gpu->migs.items);
        free(gpu->peers.items);
        free(gpu->pages.items);
        free(gpu->fields.items);
    }
    free(state->faults.items);
    free(state->hangs.items);
    free(state->delays.items);
    free(state->xids.items);
    free(state);
}
