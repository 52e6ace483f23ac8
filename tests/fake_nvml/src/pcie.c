/* The PCIe link. */
#include "fake.h"

GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, K_pcie_gen)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, K_pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, K_pcie_gen_max)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, K_pcie_gen_device_max)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, K_pcie_width_max)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, K_pcie_replay)
GETTER(nvmlDeviceGetPcieSpeed, unsigned int, K_pcie_speed_mbps)
GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, K_pcie_link_max_speed)

/* The driver measures over 20 ms; a test that wants the wait sets it as a delay. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *kbps)
{
    ENTER(device);
    UNLESS(kbps && (unsigned)counter < NVML_PCIE_UTIL_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    int flow = counter == NVML_PCIE_UTIL_TX_BYTES ? K_pcie_tx_kbps : K_pcie_rx_kbps;
    UNLESS(gpu->has[flow], NVML_ERROR_NOT_SUPPORTED);
    *kbps = (unsigned)rounded(flow_recent(gpu, flow, 20000));
    return NVML_SUCCESS;
}
