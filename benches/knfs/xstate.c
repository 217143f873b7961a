/* Lets a User-Mode Linux older than 6.13 run on a processor with AMX.
 *
 * It moves a process's extended registers by ptrace(2) with a buffer of 2,696 bytes, and the
 * host kernel refuses to set less than the processor's whole area (EFAULT). This library,
 * which is preloaded, sets the rest to what it was.
 *
 *   gcc -O1 -shared -fPIC -o xstate.so xstate.c
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

static char whole[65536] __attribute__((aligned(64)));

static long registers(int set, int pid, struct iovec *part)
{
	struct iovec all = { whole, sizeof whole };
	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &all) < 0)
		return -1;
	if (part->iov_len > all.iov_len)
		part->iov_len = all.iov_len;
	if (!set) {
		memcpy(part->iov_base, whole, part->iov_len);
		return 0;
	}
	memcpy(whole, part->iov_base, part->iov_len);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;
	va_start(rest, request);
	int pid = va_arg(rest, int);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);
	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET)
	    && (long)address == NT_X86_XSTATE)
		return registers(request == PTRACE_SETREGSET, pid, data);
	if (request < PTRACE_PEEKTEXT || request > PTRACE_PEEKUSER)
		return syscall(SYS_ptrace, request, pid, address, data);
	/* As the C library does: the word is the result. */
	long word;
	if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
		return -1;
	errno = 0;
	return word;
}
