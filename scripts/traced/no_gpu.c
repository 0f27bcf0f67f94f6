/* The part of CUDA that reports one GPU and does nothing, so that torch traces and compiles for CUDA without a GPU.
 *
 * scripts/traced/no_gpu.py builds and loads it. torch then finds a device, makes streams and events, and runs the backward
 * pass over fake tensors. Nothing else is here: whatever needs memory of the device, starts a kernel or waits for the
 * device ends in torch's "CUDA driver version is insufficient". NO_GPU_CAPABILITY is the compute capability: 80, 90.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    const char *value = getenv("NO_GPU_CAPABILITY");
    int capability = value ? atoi(value) : 90, is_hopper = capability >= 90; /* the rest is that of an A100 or an H100 */
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "no GPU");
    properties->major = capability / 10;
    properties->minor = capability % 10;
    properties->totalGlobalMem = 80ull << 30;
    properties->multiProcessorCount = is_hopper ? 132 : 108;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerMultiprocessor = 65536;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = is_hopper ? 232448 : 166912;
    properties->l2CacheSize = (is_hopper ? 50 : 40) << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    static int number = 16;
    return *stream = (cudaStream_t)(size_t)(number += 16), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count)
{
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return *event = (cudaEvent_t)16, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }

/* The driver, libcuda.so.1, which torch opens by its name. */
int cuInit(unsigned flags) { return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) { return *flags = 0, *is_active = 0, 0; }
