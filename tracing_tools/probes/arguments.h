/* The arguments of a finished call, read from its registers. */
#pragma once
#include "call_kinds.h"
#include "files.h"
#include "kernel_types.h"
#include "open_flags.h"
#include "records.h"

#define MAX_VECTORS 16

const volatile u8 call_kind[MAX_CALLS] SEC(".rodata.calls") = {};

INLINE u64 vector_bytes(const struct iovec *vectors, u64 count)
{
	u64 total = 0;
	for (u32 i = 0; i < MAX_VECTORS && i < count; i++) {
		unsigned long pair[2] = {};
		bpf_probe_read_user(pair, sizeof(pair), (const char *)vectors + i * sizeof(pair));
		total += pair[1];
	}
	return total;
}

/* Returns the start offset of a finished call that has a pointer to its offset, which it advanced by the bytes transferred. */
INLINE s64 offset_through(u64 pointer, struct identity *file, s64 result)
{
	s64 after = 0;
	if (!pointer)
		return position_before(file, result);
	bpf_probe_read_user(&after, sizeof(after), (void *)pointer);
	return result > 0 ? after - result : after;
}

INLINE void describe(struct event *event, struct pt_regs *regs, u8 kind, struct identity *file)
{
	switch (kind) {
	case READ_WRITE:
		event->requested = regs->dx;
		event->offset = position_before(file, event->result);
		break;
	case POSITIONED:
		event->requested = regs->dx;
		event->offset = regs->r10;
		break;
	case VECTOR:
		event->requested = vector_bytes((void *)regs->si, regs->dx);
		event->offset = position_before(file, event->result);
		break;
	case POSITIONED_VECTOR:
		event->requested = vector_bytes((void *)regs->si, regs->dx);
		event->offset = (s64)regs->r10 == -1 ? position_before(file, event->result) : regs->r10;
		break;
	case MAP:
		event->requested = regs->si;
		event->offset = regs->r9;
		break;
	case RANGE:
		event->offset = regs->si;
		event->requested = regs->dx;
		break;
	case ALLOCATE:
		event->offset = regs->dx;
		event->requested = regs->r10;
		break;
	case LENGTH:
	case MAPPED:
		event->requested = regs->si;
		break;
	case SEND:
		event->requested = regs->r10;
		event->offset = offset_through(regs->dx, file, event->result);
		break;
	case COPY:
		event->requested = regs->r8;
		event->offset = offset_through(regs->si, file, event->result);
		break;
	}
}

/* Returns 1 if the path is empty, with which fstatat and similar calls use the file of the descriptor. */
INLINE int has_empty_path(struct pt_regs *regs)
{
	char first = 0;
	bpf_probe_read_user(&first, sizeof(first), (void *)regs->si);
	return !first;
}

/* Returns the descriptor of the call's file, or -1. */
INLINE s32 descriptor_of(struct pt_regs *regs, u8 kind, s64 result)
{
	if (kind <= CLOSE)
		return regs->di;
	if (kind <= OPEN_AT2)
		return result >= 0 ? result : -1;
	if (kind == MAP)
		return regs->r8;
	if (kind == SEND)
		return regs->si;
	if (kind == NAME_AT)
		return has_empty_path(regs) ? (s32)regs->di : -1;
	return (kind >= RANGE && kind <= LENGTH) || kind == COPY ? (s32)regs->di : -1;
}
