/* A wall clock that can be stepped: what CLOCK_REALTIME says, and so many seconds more as the first word of /run/clock-offset tells. Preloaded
 * into a process under test; the steady clocks stay as they are, as they do when a real clock is stepped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

static const volatile int64_t *offset(void)
{
	static const volatile int64_t *seconds;
	static const volatile int64_t none;

	if (!seconds) {
		int fd = open("/run/clock-offset", O_RDONLY | O_CLOEXEC);
		void *seen = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);

		seconds = seen == MAP_FAILED ? &none : seen;
	}
	return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");

	int failed = real(clock, now);

	if (!failed && clock == CLOCK_REALTIME)
		now->tv_sec += *offset();
	return failed;
}
