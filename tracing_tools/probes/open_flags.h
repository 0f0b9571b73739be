/* Find the flags with which a call opens a file. The including program must declare bpf_probe_read_user. */
#pragma once
#include "call_kinds.h"
#include "integers.h"

INLINE u64 open_flags_of(u8 kind, u64 second_argument, u64 third_argument)
{
	u64 flags = 0;
	if (kind == OPEN)
		return second_argument;
	if (kind == OPEN_AT)
		return third_argument;
	if (kind == CREATE)
		return 01101; /* O_CREAT | O_WRONLY | O_TRUNC, as creat(2) specifies */
	bpf_probe_read_user(&flags, sizeof(flags), (void *)third_argument); /* first field of struct open_how */
	return flags;
}
