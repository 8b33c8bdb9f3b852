// What both halves of the null GPU share; see runtime.cpp.

#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

// kinds of memory
enum { UNKNOWN = 0, PINNED = 1, DEVICE = 2 };

cudaError_t launch(cudaStream_t stream);
cudaError_t allocate(void** p, size_t n, int kind);
cudaError_t release(void* p);
int kind_of(const void* p);
int attribute(int a);

// a function that succeeds and gives one value
template <class T, class V>
static cudaError_t give(T* out, V value) {
  *out = (T)value;
  return cudaSuccess;
}
