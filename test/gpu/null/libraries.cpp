// The null GPU as cuBLAS and as the driver that Triton and torch's launcher call; see runtime.cpp.

#include <dlfcn.h>

#include "device.h"

// --- cublas: every call of these is one launch
#define BLAS(name)           \
  API int name(void*, ...) { \
    launch(blas_stream);     \
    return 0;                \
  }
static thread_local cudaStream_t blas_stream;
API int cublasCreate_v2(void** h) { return (int)give(h, malloc(64)); }
API int cublasDestroy_v2(void*) { return 0; }
API int cublasSetStream_v2(void*, cudaStream_t s) {
  blas_stream = s;
  return 0;
}
API int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
API int cublasSetMathMode(void*, int) { return 0; }
API int cublasGetMathMode(void*, int* m) { return (int)give(m, 0); }
API int cublasSetPointerMode_v2(void*, int) { return 0; }
API int cublasGetPointerMode_v2(void*, int* m) { return (int)give(m, 0); }
API int cublasSetSmCountTarget(void*, int) { return 0; }
// clang-format off
BLAS(cublasSgemm_v2)
BLAS(cublasDgemm_v2)
BLAS(cublasGemmEx)
BLAS(cublasSgemmEx)
BLAS(cublasSgemmStridedBatched)
BLAS(cublasGemmStridedBatchedEx)
BLAS(cublasSgemv_v2)
BLAS(cublasDgemv_v2)
BLAS(cublasSdot_v2)
BLAS(cublasDotEx)
BLAS(cublasDgemmStridedBatched)
// clang-format on
API int cublasLtMatmulDescCreate(void** d, int, int) { return (int)give(d, malloc(64)); }
API int cublasLtMatmulDescDestroy(void*) { return 0; }
API int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return 0; }
API int cublasLtMatmulPreferenceCreate(void** d) { return (int)give(d, malloc(64)); }
API int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
API int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
API int cublasLtMatrixLayoutCreate(void** d, int, unsigned long, unsigned long, long) {
  return (int)give(d, malloc(64));
}
API int cublasLtMatrixLayoutDestroy(void*) { return 0; }
API int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return 0; }
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int n, void* out, int* found) {
  memset(out, 0, 96 * (n > 1 ? 1 : n));
  *found = 1;
  return 0;
}
API int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                       void*, void*, void*, const void*, void*, size_t, cudaStream_t s) {
  launch(s);
  return 0;
}

// --- the driver, as triton and torch's launcher use it
API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxGetLimit(size_t* v, CUlimit) { return (CUresult)give(v, 0); }
API CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) { return (CUresult)allocate((void**)p, n, DEVICE); }
API CUresult cuMemFree_v2(CUdeviceptr p) { return (CUresult)release((void*)p); }
API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* v) { return (CUresult)give(v, 13000); }
API CUresult cuDeviceGetCount(int* n) { return (CUresult)give(n, 1); }
API CUresult cuDeviceGet(CUdevice* d, int i) { return (CUresult)give(d, i); }
API CUresult cuDeviceGetName(char* s, int n, CUdevice) {
  snprintf(s, n, "Null GPU");
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice) {
  return (CUresult)give(v, attribute((int)a));
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { return (CUresult)give(c, (CUcontext)8); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* c) { return (CUresult)give(c, (CUcontext)8); }
API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice* d) { return (CUresult)give(d, 0); }
API CUresult cuGetErrorString(CUresult, const char** s) { return (CUresult)give(s, "null gpu error"); }
API CUresult cuGetErrorName(CUresult, const char** s) { return (CUresult)give(s, "null gpu error"); }
API CUresult cuModuleLoad(CUmodule* m, const char*) { return (CUresult)give(m, (CUmodule)malloc(8)); }
API CUresult cuModuleLoadData(CUmodule* m, const void*) { return (CUresult)give(m, (CUmodule)malloc(8)); }
API CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
  return (CUresult)give(m, (CUmodule)malloc(8));
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char*) {
  return (CUresult)give(f, (CUfunction)malloc(8));
}
API CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
  return (CUresult)give(v, a == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
                           : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                          : 0);
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream s, void**, void**) {
  return (CUresult)launch(s);
}
API CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                       CUstream s, void**) {
  return (CUresult)launch(s);
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void**, void**) {
  return (CUresult)launch(c->hStream);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int, size_t) {
  return (CUresult)give(n, 2);
}
API CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) { return (CUresult)give(n, 1); }
API CUresult cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
  int k = kind_of((void*)p);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)v = p; return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned*)v = k == DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: memset(v, 0, 8); return CUDA_SUCCESS;
  }
}
API CUresult cuMemGetInfo_v2(size_t* f, size_t* t) {
  *f = 38ull << 30;
  *t = 40ull << 30;
  return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream s) { return (CUresult)cudaStreamSynchronize(s); }
API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* v) {
  return (CUresult)cudaStreamIsCapturing(s, (cudaStreamCaptureStatus*)v);
}
static CUresult nothing() { return CUDA_SUCCESS; }
API CUresult cuGetProcAddress_v2(const char* name, void** f, int, cuuint64_t, CUdriverProcAddressQueryResult* st) {
  *f = dlsym(RTLD_DEFAULT, name);
  if (!*f) *f = (void*)nothing;
  if (st) *st = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* st) {
  *f = dlsym(RTLD_DEFAULT, name);
  if (!*f) *f = (void*)nothing;
  if (st) *st = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
