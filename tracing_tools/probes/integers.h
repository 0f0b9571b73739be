/* Integer types by size, for eBPF programs and C libraries. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define INLINE static inline __attribute__((always_inline))
