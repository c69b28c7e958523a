/* Points at which a process dies or a system call fails: a seccomp filter traps each system call but those
 * that the handler of the trap makes itself, so that none escapes, whoever makes it. */
#define _GNU_SOURCE
#include "copy_in_halves.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the filter reads the halves of a 64-bit word in this order"
#endif

/* A system call that the filter lets through, by the address behind its instruction. */
long mc_call(long number, const long *arguments);
extern const char mc_call_made[];
#if defined(__x86_64__)
#define RESULT(m) ((m)->gregs[REG_RAX])
#define ARGUMENTS(m)                                                                                         \
    {(m)->gregs[REG_RDI], (m)->gregs[REG_RSI], (m)->gregs[REG_RDX],                                          \
     (m)->gregs[REG_R10], (m)->gregs[REG_R8],  (m)->gregs[REG_R9]}
__asm__(
    ".text\n.globl mc_call, mc_call_made\n.hidden mc_call, mc_call_made\n"
    "mc_call: mov %rdi, %rax\n mov %rsi, %r11\n mov (%r11), %rdi\n mov 8(%r11), %rsi\n mov 16(%r11), %rdx\n"
    "mov 24(%r11), %r10\n mov 32(%r11), %r8\n mov 40(%r11), %r9\n syscall\n mc_call_made: ret\n");
#elif defined(__aarch64__)
#define RESULT(m) ((m)->regs[0])
#define ARGUMENTS(m)                                                                                         \
    {(long)(m)->regs[0], (long)(m)->regs[1], (long)(m)->regs[2],                                             \
     (long)(m)->regs[3], (long)(m)->regs[4], (long)(m)->regs[5]}
__asm__(".text\n.globl mc_call, mc_call_made\n.hidden mc_call, mc_call_made\n"
        "mc_call: mov x8, x0\n mov x9, x1\n ldp x0, x1, [x9]\n ldp x2, x3, [x9, 16]\n ldp x4, x5, [x9, 32]\n"
        "svc 0\n mc_call_made: ret\n");
#else
#error "expected x86-64 or aarch64"
#endif

static int armed, injected;
static int64_t strike;
static volatile int64_t *told;

static long mc_call_0(long number) { return mc_call(number, (long[6]){0}); }

/* Whether this point is the one. */
static int mc_point_strikes(int64_t what) {
    if (!armed)
        return 0;
    if (told[0] <= strike)
        told[1] = what;
    return told[0]++ == strike;
}

static void mc_die(void) { (void)mc_call(SYS_kill, (long[6]){mc_call_0(SYS_getpid), SIGKILL}); }

void mc_point(int64_t what) {
    if (!injected && mc_point_strikes(what))
        mc_die();
}

/* No points: calls that never fail, and the memory allocator's own, whose failures are no concern of the
 * core. */
static int mc_passes(long number, const long *arguments) {
    return number == SYS_getpid || number == SYS_geteuid || number == SYS_brk || number == SYS_munmap ||
           number == SYS_mremap || number == SYS_madvise ||
           (number == SYS_mmap && arguments[3] & MAP_ANONYMOUS);
}

static void mc_on_call(int signal, siginfo_t *info, void *context) {
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    long number = info->si_syscall, arguments[6] = ARGUMENTS(machine), result;
    int strikes = !mc_passes(number, arguments) && mc_point_strikes(number);
    (void)signal;
    if (strikes && !injected)
        mc_die();
    if (strikes && number != SYS_close)
        result = -injected;
    else
        result = mc_call(number, arguments);
    if (strikes && number == SYS_close) /* Linux closes a descriptor whatever it says of it */
        result = -injected;
    RESULT(machine) = result;
}

int mc_points_arm(int64_t at, int error, volatile int64_t *report) {
    uint64_t made = (uint64_t)(uintptr_t)mc_call_made;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0), /* the way out of the handler */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)made, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(made >> 32), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = mc_on_call, .sa_flags = SA_SIGINFO};
    strike = at;
    injected = error;
    told = report;
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return -errno;
    armed = 1;
    return 0;
}

void mc_points_disarm(void) { armed = 0; }
