// A GPU that computes nothing: what torch's CUDA build and Triton call of libcuda, libcudart and libcublas.
//
// Memory of the device is memory of the host. Copies copy, launches and waits are counted, captures are followed, and
// what is not allowed within a capture is refused. What comes back from the device is 0.
//
// Preloaded: g++ -O1 -shared -fPIC -I<CUDA headers> -Wl,-soname,libcuda.so.1 -o libcuda.so.1 *.cpp -ldl

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "device.h"

// read by updates.py, field by field
struct Counts {
  long launch, graph_launch, graph_kernel, sync, upload, download, copy, unsafe;
};
static Counts C;
static std::recursive_mutex M;
typedef std::lock_guard<std::recursive_mutex> Lock;
static std::map<char*, std::pair<size_t, int>>& blocks() {
  static auto* m = new std::map<char*, std::pair<size_t, int>>;
  return *m;
}
static thread_local cudaError_t last = cudaSuccess;
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
static cudaError_t say(cudaError_t e) {
  if (e != cudaSuccess) last = e;
  return e;
}

struct Graph {
  long kernels = 0;
};
struct Stream {
  Graph* graph = nullptr;
  unsigned long long id = 0;
};
static std::set<Stream*>& capturing() {
  static auto* s = new std::set<Stream*>;
  return *s;
}
static unsigned long long next_id = 1;
static Stream* of(cudaStream_t s) { return ((size_t)s) < 4 ? nullptr : (Stream*)s; }

// what is not allowed while something is captured
static bool is_unsafe() { return !capturing().empty() && mode_of_thread != cudaStreamCaptureModeRelaxed; }
static void complain(const char* what) {
  C.unsafe++;
  fprintf(stderr, "null GPU: %s during capture\n", what);
}

API Counts* nullgpu_counts() { return &C; }
API void nullgpu_clear() {
  Lock l(M);
  C = Counts();
}

cudaError_t launch(cudaStream_t stream) {
  Lock l(M);
  Stream* s = of(stream);
  if (s && s->graph) {
    s->graph->kernels++;
    return cudaSuccess;
  }
  if (!s && is_unsafe()) {
    complain("launch on the default stream");
    return say(cudaErrorStreamCaptureImplicit);
  }
  C.launch++;
  return cudaSuccess;
}

// --- devices
API cudaError_t cudaGetDeviceCount(int* n) { return give(n, 1); }
API cudaError_t cudaGetDevice(int* d) { return give(d, 0); }
API cudaError_t cudaSetDevice(int) { return cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int* v) { return give(v, 13000); }
API cudaError_t cudaRuntimeGetVersion(int* v) { return give(v, 13000); }
int attribute(int a) {
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrClockRate: return 1410000;
    case cudaDevAttrMultiProcessorCount: return 108;
    case cudaDevAttrConcurrentKernels: return 1;
    case cudaDevAttrComputeCapabilityMajor: return 8;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 167936;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 166912;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrL2CacheSize: return 40 << 20;
    case cudaDevAttrMemoryClockRate: return 1215000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrCooperativeLaunch: return 1;
    default: return 0;
  }
}
API cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) { return give(v, attribute(a)); }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Null GPU");
  p->major = 8;
  p->minor = 0;
  p->multiProcessorCount = 108;
  p->totalGlobalMem = 40ull << 30;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 166912;
  p->sharedMemPerMultiprocessor = 167936;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerMultiProcessor = 2048;
  p->l2CacheSize = 40 << 20;
  p->unifiedAddressing = 1;
  p->totalConstMem = 65536;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->maxBlocksPerMultiProcessor = 32;
  p->cooperativeLaunch = 1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int) {
  snprintf(s, n, "0000:00:00.0");
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) { return give(v, 0); }
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) {
  if (a) *a = 0;
  if (b) *b = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  Lock l(M);
  if (!capturing().empty()) {
    complain("cudaDeviceSynchronize");
    return say(cudaErrorStreamCaptureUnsupported);
  }
  C.sync++;
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  *f = 38ull << 30;
  *t = 40ull << 30;
  return cudaSuccess;
}
API cudaError_t cudaGetLastError() {
  auto e = last;
  last = cudaSuccess;
  return e;
}
API cudaError_t cudaPeekAtLastError() { return last; }
API const char* cudaGetErrorString(cudaError_t e) { return e ? "null gpu error" : "no error"; }
API const char* cudaGetErrorName(cudaError_t e) { return e ? "nullGpuError" : "cudaSuccess"; }
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

// --- memory
cudaError_t allocate(void** p, size_t n, int kind) {
  Lock l(M);
  if (kind == DEVICE && is_unsafe()) {
    complain("cudaMalloc");
    return say(cudaErrorStreamCaptureUnsupported);
  }
  size_t size = ((n + 511) / 512) * 512;
  if (!size) size = 512;
  void* q;
  if (posix_memalign(&q, 512, size)) return say(cudaErrorMemoryAllocation);
  memset(q, 0, size);
  blocks()[(char*)q] = {size, kind};
  *p = q;
  return cudaSuccess;
}
cudaError_t release(void* p) {
  Lock l(M);
  if (p) {
    blocks().erase((char*)p);
    free(p);
  }
  return cudaSuccess;
}
API cudaError_t cudaMalloc(void** p, size_t n) { return allocate(p, n, DEVICE); }
API cudaError_t cudaFree(void* p) { return release(p); }
API cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return allocate(p, n, DEVICE); }
API cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return release(p); }
API cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) { return allocate(p, n, PINNED); }
API cudaError_t cudaFreeHost(void* p) { return release(p); }
API cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  Lock l(M);
  blocks()[(char*)p] = {n, PINNED};
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* p) {
  Lock l(M);
  blocks().erase((char*)p);
  return cudaSuccess;
}
int kind_of(const void* p) {
  Lock l(M);
  auto it = blocks().upper_bound((char*)p);
  if (it == blocks().begin()) return 0;
  --it;
  return (char*)p < it->first + it->second.first ? it->second.second : 0;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  int k = kind_of(p);
  a->type = k == DEVICE ? cudaMemoryTypeDevice : k == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->device = k ? 0 : -2;
  a->devicePointer = (void*)p;
  a->hostPointer = k == DEVICE ? nullptr : (void*)p;
  return cudaSuccess;
}
static cudaError_t copy(void* d, const void* s, size_t n, cudaStream_t stream, bool blocks_host) {
  Lock l(M);
  int kd = kind_of(d), ks = kind_of(s);
  Stream* st = of(stream);
  if (st && st->graph) {
    st->graph->kernels++;
    if (kd == DEVICE && ks == DEVICE) return cudaSuccess;
    complain("copy between host and device");
    return cudaSuccess;
  }
  if (kd == DEVICE && ks == DEVICE) {
    C.copy++;
  } else if (kd == DEVICE) {
    C.upload++;
  } else {
    C.download++;
  }
  if (blocks_host) { C.sync++; }
  // nothing was computed: what comes back is as if all were 0
  if (ks == DEVICE && kd != DEVICE) memset(d, 0, n);
  else memmove(d, s, n);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) { return copy(d, s, n, 0, true); }
API cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
  return copy(d, s, n, st, false);
}
API cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  return copy(d, s, n, st, false);
}
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
API cudaError_t cudaMemset(void* p, int v, size_t n) {
  memset(p, v, n);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t st) {
  Lock l(M);
  Stream* s = of(st);
  if (s && s->graph) {
    s->graph->kernels++;
    return cudaSuccess;
  }
  memset(p, v, n);
  return cudaSuccess;
}
static char symbol_memory[4096];
API cudaError_t cudaGetSymbolAddress(void** p, const void*) { return give(p, symbol_memory); }
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) { return give(p, (cudaMemPool_t)8); }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(unsigned long long*)v = 0;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// --- streams and events
static cudaError_t new_stream(cudaStream_t* s) { return give(s, (cudaStream_t) new Stream); }
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return new_stream(s); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return new_stream(s); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return new_stream(s); }
API cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t, int* p) { return give(p, 0); }
API cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaStreamSynchronize(cudaStream_t st) {
  Lock l(M);
  Stream* s = of(st);
  if (s && s->graph) {
    complain("cudaStreamSynchronize");
    return say(cudaErrorStreamCaptureUnsupported);
  }
  if (is_unsafe() && !s) {
    complain("cudaStreamSynchronize of the default stream");
    return say(cudaErrorStreamCaptureUnsupported);
  }
  C.sync++;
  return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* d, unsigned) {
  f(s, cudaSuccess, d);
  return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* d) {
  f(d);
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return give(e, (cudaEvent_t)malloc(16)); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return give(e, (cudaEvent_t)malloc(16)); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  free((void*)e);
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* t, cudaEvent_t, cudaEvent_t) { return give(t, 0.01f); }
API cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaEventSynchronize(cudaEvent_t) {
  C.sync++;
  return cudaSuccess;
}

// --- graphs
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  auto old = mode_of_thread;
  mode_of_thread = *m;
  *m = old;
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t st, cudaStreamCaptureMode) {
  Lock l(M);
  Stream* s = of(st);
  if (!s) {
    complain("begin on the default stream");
    return say(cudaErrorStreamCaptureUnsupported);
  }
  s->graph = new Graph;
  s->id = next_id++;
  capturing().insert(s);
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t st, cudaGraph_t* g) {
  Lock l(M);
  Stream* s = of(st);
  *g = (cudaGraph_t)s->graph;
  s->graph = nullptr;
  capturing().erase(s);
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t st, cudaStreamCaptureStatus* v) {
  Lock l(M);
  Stream* s = of(st);
  *v = s && s->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t st, cudaStreamCaptureStatus* v, unsigned long long* id,
                                         cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** e,
                                         size_t* n) {
  Lock l(M);
  Stream* s = of(st);
  bool is = s && s->graph;
  *v = is ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = is ? s->id : 0;
  if (g) *g = is ? (cudaGraph_t)s->graph : nullptr;
  if (d) *d = nullptr;
  if (e) *e = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                    unsigned) {
  return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* n) {
  if (!nodes) *n = ((Graph*)g)->kernels;
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) {
  return give(e, (cudaGraphExec_t)g);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t) {
  Lock l(M);
  C.graph_launch++;
  C.graph_kernel += ((Graph*)e)->kernels;
  return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

// --- kernels of torch
struct Config {
  dim3 g, b;
  size_t m;
  cudaStream_t s;
};
static thread_local std::vector<Config>* configs;
API unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t m, cudaStream_t s) {
  if (!configs) configs = new std::vector<Config>;
  configs->push_back({g, b, m, s});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* m, void* s) {
  auto c = configs->back();
  configs->pop_back();
  *g = c.g;
  *b = c.b;
  *m = c.m;
  *(cudaStream_t*)s = c.s;
  return cudaSuccess;
}
API void** __cudaRegisterFatBinary(void*) {
  static void* h[1];
  return h;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) { return give(k, (cudaKernel_t)f); }
API cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t s) { return launch(s); }
API cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t s) { return launch(s); }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void*, void**) { return launch(c->stream); }
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = 80;
  a->binaryVersion = 80;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
  return give(n, 2);
}
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
