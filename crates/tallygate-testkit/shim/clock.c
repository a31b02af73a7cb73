/* Moves the wall clock of one process, live. Preloaded; the monotonic clock is left alone.
 * TALLYGATE_SKEW_FILE: 8 bytes, native order: the offset in microseconds. Mapped, so a rewrite is seen at once. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("TALLYGATE_SKEW_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset = page;
}

/* `unit` is how many of the smaller field make a second: 1e6 or 1e9. */
static void shift(time_t *seconds, long *fraction, long unit) {
    int64_t micros = offset ? *offset : 0;
    *seconds += micros / 1000000;
    *fraction += (long)(micros % 1000000) * (unit / 1000000);
    if (*fraction < 0) {
        *fraction += unit;
        *seconds -= 1;
    } else if (*fraction >= unit) {
        *fraction -= unit;
        *seconds += 1;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(&now->tv_sec, &now->tv_nsec, 1000000000);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed) shift(&now->tv_sec, &now->tv_usec, 1000000);
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
