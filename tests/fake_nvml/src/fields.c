/* Field values: one table from field id to what it reads. A test may give any field its own answer
 * (`gpu0.field ID SCOPE STATUS TYPE VALUE`), which comes before the table. */
#include "fake.h"

#include <stdio.h>

enum how {
    PLAIN,       /* the key's value now */
    MEAN,        /* of the last second */
    INTEGRAL,    /* since the timeline began */
    NANOSECONDS, /* how long a reason held */
    ENERGY,      /* the integral of power, from where the counter began */
    ECC_TOTAL,   /* over all memory locations */
    PAGES,       /* retired for a cause */
    LINK_STATE,  /* the rest are of one NVLink, or of all */
    LINK_ERROR,
    LINK_ERROR_ALL, /* of all, whatever the scope says */
    LINK_KIB,
    LINK_BYTES,
    SPEED
};
enum {
    U32 = NVML_VALUE_TYPE_UNSIGNED_INT,
    U64 = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    S32 = NVML_VALUE_TYPE_SIGNED_INT
};
enum { FLIT, DATA, REPLAY, RECOVERY, ECC };

static const struct row {
    unsigned id;
    enum how how;
    int key, type;
    double scale;
} rows[] = {
    {NVML_FI_DEV_ECC_CURRENT, PLAIN, K_ecc_mode, U32, 1},
    {NVML_FI_DEV_ECC_PENDING, PLAIN, K_ecc_pending, U32, 1},
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, ECC_TOTAL, 0, U64, 1},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, ECC_TOTAL, 1, U64, 1},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, ECC_TOTAL, 2, U64, 1},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, ECC_TOTAL, 3, U64, 1},
#define ECC_ROWS(FIELD, key) \
    {NVML_FI_DEV_ECC_SBE_VOL_##FIELD, PLAIN, K_ecc_corrected_volatile_##key, U64, 1}, \
        {NVML_FI_DEV_ECC_SBE_AGG_##FIELD, PLAIN, K_ecc_corrected_aggregate_##key, U64, 1}, \
        {NVML_FI_DEV_ECC_DBE_VOL_##FIELD, PLAIN, K_ecc_uncorrected_volatile_##key, U64, 1}, \
        {NVML_FI_DEV_ECC_DBE_AGG_##FIELD, PLAIN, K_ecc_uncorrected_aggregate_##key, U64, 1}
    ECC_ROWS(L1, l1),
    ECC_ROWS(L2, l2),
    ECC_ROWS(DEV, dram),
    ECC_ROWS(REG, register),
    ECC_ROWS(TEX, texture),
    {NVML_FI_DEV_ECC_DBE_VOL_CBU, PLAIN, K_ecc_uncorrected_volatile_cbu, U64, 1},
    {NVML_FI_DEV_ECC_DBE_AGG_CBU, PLAIN, K_ecc_uncorrected_aggregate_cbu, U64, 1},
    {NVML_FI_DEV_RETIRED_SBE, PAGES, 0, U64, 1},
    {NVML_FI_DEV_RETIRED_DBE, PAGES, 1, U64, 1},
    {NVML_FI_DEV_RETIRED_PENDING, PLAIN, K_retired_pending, U32, 1},
    {NVML_FI_DEV_RETIRED_PENDING_SBE, PLAIN, K_retired_pending, U32, 1},
    {NVML_FI_DEV_RETIRED_PENDING_DBE, PLAIN, K_retired_pending, U32, 1},
    {NVML_FI_DEV_REMAPPED_COR, PLAIN, K_remapped_correctable, U32, 1},
    {NVML_FI_DEV_REMAPPED_UNC, PLAIN, K_remapped_uncorrectable, U32, 1},
    {NVML_FI_DEV_REMAPPED_PENDING, PLAIN, K_remapped_pending, U32, 1},
    {NVML_FI_DEV_REMAPPED_FAILURE, PLAIN, K_remapped_failure, U32, 1},
    {NVML_FI_DEV_REMAPPED_ROWS_COR_INACTIVE, PLAIN, K_remapped_correctable_inactive, U32, 1},
    {NVML_FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, PLAIN, K_remapped_uncorrectable_inactive, U32, 1},
    {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, PLAIN, K_recovery_action, U32, 1},

    {NVML_FI_DEV_PERF_POLICY_POWER, NANOSECONDS, K_reason_sw_power_cap, U64, 1},
    {NVML_FI_DEV_PERF_POLICY_THERMAL, NANOSECONDS, K_reason_sw_thermal, U64, 1},
    {NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, NANOSECONDS, K_reason_sync_boost, U64, 1},
    {NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, NANOSECONDS, K_policy_board_limit, U64, 1},
    {NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, NANOSECONDS, K_policy_low_utilization, U64, 1},
    {NVML_FI_DEV_PERF_POLICY_RELIABILITY, NANOSECONDS, K_policy_reliability, U64, 1},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, NANOSECONDS, K_reason_sw_thermal, U64, 1},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, NANOSECONDS, K_reason_hw_thermal, U64, 1},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, NANOSECONDS, K_reason_hw_power_brake, U64, 1},

    {NVML_FI_DEV_MEMORY_TEMP, PLAIN, K_temperature_memory, U32, 1},
    {NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, PLAIN, K_tlimit_shutdown, S32, 1},
    {NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, PLAIN, K_tlimit_slowdown, S32, 1},
    {NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, PLAIN, K_tlimit_memory_max, S32, 1},
    {NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, PLAIN, K_tlimit_gpu_max, S32, 1},
    {NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, ENERGY, K_energy_mj, U64, 1},
    {NVML_FI_DEV_ENERGY, ENERGY, K_energy_mj, U64, 1},
    {NVML_FI_DEV_POWER_AVERAGE, MEAN, K_power_mw, U32, 1},
    {NVML_FI_DEV_POWER_INSTANT, PLAIN, K_power_mw, U32, 1},
    {NVML_FI_DEV_POWER_MIN_LIMIT, PLAIN, K_power_min_mw, U32, 1},
    {NVML_FI_DEV_POWER_MAX_LIMIT, PLAIN, K_power_max_mw, U32, 1},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, PLAIN, K_power_default_mw, U32, 1},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, PLAIN, K_power_enforced_mw, U32, 1},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, PLAIN, K_power_limit_mw, U32, 1},

    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, PLAIN, K_pcie_replay, U32, 1},
    {NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, PLAIN, K_pcie_replay_rollover, U32, 1},
    {NVML_FI_DEV_PCIE_COUNT_TX_BYTES, INTEGRAL, K_pcie_tx_kbps, U64, 1000},
    {NVML_FI_DEV_PCIE_COUNT_RX_BYTES, INTEGRAL, K_pcie_rx_kbps, U64, 1000},

    {NVML_FI_DEV_NVLINK_LINK_COUNT, PLAIN, K_nvlink_count, U32, 1},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, PLAIN, K_nvlink_speed_mbps, U32, 1},
    {NVML_FI_DEV_NVLINK_GET_SPEED, SPEED, K_nvlink_speed_mbps, U32, 1},
    {NVML_FI_DEV_NVLINK_GET_STATE, LINK_STATE, 0, U32, 1},
    {NVML_FI_DEV_NVLINK_GET_VERSION, PLAIN, K_nvlink_version, U32, 1},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, LINK_KIB, K_nvlink_tx_kibps, U64, 1},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, LINK_KIB, K_nvlink_rx_kibps, U64, 1},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, LINK_KIB, K_nvlink_tx_kibps, U64, 1.125},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, LINK_KIB, K_nvlink_rx_kibps, U64, 1.125},
    {NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, LINK_BYTES, K_nvlink_tx_kibps, U64, 1024},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, LINK_BYTES, K_nvlink_rx_kibps, U64, 1024},
    {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, LINK_ERROR, REPLAY, U64, 1},
    {NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, LINK_ERROR, RECOVERY, U64, 1},
    {NVML_FI_DEV_NVLINK_ERROR_DL_CRC, LINK_ERROR, FLIT, U64, 1},
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, LINK_ERROR_ALL, FLIT, U64, 1},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, LINK_ERROR_ALL, DATA, U64, 1},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, LINK_ERROR_ALL, REPLAY, U64, 1},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, LINK_ERROR_ALL, RECOVERY, U64, 1},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, LINK_ERROR_ALL, ECC, U64, 1},
    {NVML_FI_DEV_C2C_LINK_COUNT, PLAIN, K_c2c_links, U32, 1},
};

/* The older ids name the link in themselves, in two runs: links 0 to 5 and 6 to 11. */
static const struct run {
    unsigned first, later;
    enum how how;
    int key, type;
} runs[] = {
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6, LINK_ERROR, FLIT,
     U64},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6, LINK_ERROR, DATA,
     U64},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6, LINK_ERROR, REPLAY,
     U64},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6, LINK_ERROR,
     RECOVERY, U64},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6, LINK_ERROR, ECC,
     U64},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, NVML_FI_DEV_NVLINK_SPEED_MBPS_L6, SPEED, K_nvlink_speed_mbps, U32},
};

static bool run_of(unsigned id, struct row *row, unsigned *link)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        for (unsigned part = 0; part < 2; part++) {
            unsigned start = part ? runs[i].later : runs[i].first;
            if (id - start < 6) {
                *row = (struct row){id, runs[i].how, runs[i].key, runs[i].type, 1};
                *link = id - start + part * 6;
                return true;
            }
        }
    return false;
}

static double link_errors(const struct link *link, int kind)
{
    const unsigned long long counts[] = {link->crc_flit, link->crc_data, link->replay, link->recovery,
                                         link->ecc};
    return (double)counts[kind];
}

/* Reads a value of NVLink: `scope` is the link, and anything beyond the last one means all. */
static nvmlReturn_t read_link(const struct gpu *gpu, const struct row *row, unsigned scope, double *out)
{
    unsigned links = (unsigned)gpu->value[K_nvlink_count];
    UNLESS(links && links <= MAX_LINKS, NVML_ERROR_NOT_SUPPORTED);
    bool all = scope == NO_INSTANCE || row->how == LINK_ERROR_ALL;
    UNLESS(all || scope < links, NVML_ERROR_INVALID_ARGUMENT);
    *out = 0;
    switch (row->how) {
    case LINK_STATE: *out = !gpu->links[all ? 0 : scope].down; return NVML_SUCCESS;
    case SPEED: *out = gpu->links[all ? 0 : scope].down ? 0 : gpu->value[row->key]; return NVML_SUCCESS;
    case LINK_ERROR:
    case LINK_ERROR_ALL:
        for (unsigned i = all ? 0 : scope; i < (all ? links : scope + 1); i++)
            *out += link_errors(&gpu->links[i], row->key);
        return NVML_SUCCESS;
    default:
        UNLESS(gpu->has[row->key], NVML_ERROR_NOT_SUPPORTED);
        *out = flow_total(gpu, row->key, fake_now) * row->scale / (all ? 1 : links);
        return NVML_SUCCESS;
    }
}

static double count_pages(const struct gpu *gpu, int cause)
{
    unsigned found = 0;
    for (size_t i = 0; i < gpu->pages.count; i++)
        found += gpu->pages.items[i].cause == cause;
    return found;
}

static nvmlReturn_t read_row(const struct gpu *gpu, const struct row *row, unsigned scope, double *out)
{
    bool ecc = row->how == ECC_TOTAL || (row->how == PLAIN && row->key >= K_ecc_corrected_volatile_l1 &&
                                         row->key < K_sram_aggregate_parity);
    UNLESS(!ecc || gpu->value[K_ecc_mode], NVML_ERROR_NOT_SUPPORTED);
    switch (row->how) {
    case ECC_TOTAL:
        *out = 0;
        for (int key = K_ecc_corrected_volatile_l1; key < K_sram_aggregate_parity; key += 4)
            *out += gpu->value[key + row->key];
        return NVML_SUCCESS;
    case PAGES:
        *out = count_pages(gpu, row->key);
        return gpu->has[K_retired_pending] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case LINK_BYTES: /* these ids came with NVLink 5 */
        UNLESS(gpu->value[K_nvlink_byte_counters], NVML_ERROR_NOT_SUPPORTED);
        return read_link(gpu, row, scope, out);
    case LINK_STATE:
    case LINK_ERROR:
    case LINK_ERROR_ALL:
    case LINK_KIB:
    case SPEED: return read_link(gpu, row, scope, out);
    default: break;
    }
    UNLESS(gpu->has[row->key], NVML_ERROR_NOT_SUPPORTED);
    switch (row->how) {
    case MEAN: *out = flow_recent(gpu, row->key, 1000000); break;
    case INTEGRAL: *out = flow_total(gpu, row->key, fake_now) * row->scale; break;
    case NANOSECONDS: *out = flow_total(gpu, row->key, fake_now) * 1e9; break;
    case ENERGY: *out = gpu->value[row->key] + flow_total(gpu, K_power_mw, fake_now); break;
    default: *out = value_of(gpu, row->key); break;
    }
    return NVML_SUCCESS;
}

static void store(nvmlFieldValue_t *field, int type, double value)
{
    field->valueType = (nvmlValueType_t)type;
    switch (type) {
    case NVML_VALUE_TYPE_DOUBLE: field->value.dVal = value; break;
    case S32: field->value.siVal = (int)value; break;
    case U64: field->value.ullVal = rounded(value); break;
    case NVML_VALUE_TYPE_SIGNED_LONG_LONG: field->value.sllVal = (long long)value; break;
    default: field->value.uiVal = (unsigned)rounded(value); break;
    }
}

static bool overridden(const struct gpu *gpu, nvmlFieldValue_t *field)
{
    for (size_t i = 0; i < gpu->fields.count; i++) {
        const struct field *own = &gpu->fields.items[i];
        if (own->id != field->fieldId || (own->scope != NO_INSTANCE && own->scope != field->scopeId))
            continue;
        field->nvmlReturn = own->status;
        store(field,
              own->type == 'd'   ? NVML_VALUE_TYPE_DOUBLE
              : own->type == 'i' ? S32
              : own->type == 'l' ? U64
                                 : U32,
              own->value);
        return true;
    }
    return false;
}

#define SETTING (~0u) /* of power smoothing */

/* What this release of the driver has at `id`, by the ids of nvml.h; 0: nothing. Throttle times are at 269 to 271 since
   580.82, were at 251 to 253 since 575, with settings at 269 to 271, and do not exist before. */
static unsigned todays_id(unsigned id)
{
    int major = 0, minor = 0;
    unsigned first = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN;
    sscanf(fake->driver_version, "%d.%d", &major, &minor);
    bool is_newest = major * 1000 + minor >= 580082;
    if (major >= 575 && !is_newest && id >= 251 && id <= 253)
        return first + id - 251;
    if (is_newest || id < first || id > first + 2)
        return id;
    return major >= 575 ? SETTING : 0;
}

static void read_field(const struct gpu *gpu, nvmlFieldValue_t *field)
{
    struct row row = {0};
    unsigned scope = field->scopeId;
    double value = 0;
    field->timestamp = fake_now;
    field->latencyUsec = 0;
    if (overridden(gpu, field))
        return;
    unsigned id = todays_id(field->fieldId);
    if (id == SETTING) {
        field->nvmlReturn = NVML_SUCCESS;
        store(field, U32, 0);
        return;
    }
    bool known = run_of(id, &row, &scope);
    for (size_t i = 0; !known && i < sizeof rows / sizeof *rows; i++)
        if (rows[i].id == id) {
            row = rows[i];
            known = true;
        }
    field->nvmlReturn = known ? read_row(gpu, &row, scope, &value) : NVML_ERROR_NOT_SUPPORTED;
    if (!field->nvmlReturn)
        store(field, row.type, value);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(device);
    UNLESS(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < count; i++)
        read_field(gpu, &values[i]);
    return NVML_SUCCESS;
}
