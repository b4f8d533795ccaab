// File operations of a process that fail as those of a full disk or a broken one do, or end it: for `launch chaos`.
//
// Loaded before the C library (LD_PRELOAD). Operations on files in one folder are counted; the chosen one fails. Armed by
// file_faults_arm() in this process, or by the variable FILE_FAULTS="RANK OPERATION ACTION FOLDER" in the rank it names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define JUMP_SECONDS 86400

enum { NOTHING = 0, KILL = -1, CLOCK_FORWARD = -2, CLOCK_BACK = -3 };  // other actions are error numbers

static char folder[PATH_MAX];
static long counted, chosen;
static int action;
static time_t offset;

void file_faults_arm(const char *of_folder, long operation, int what)
{
    snprintf(folder, sizeof folder, "%s", of_folder);
    counted = 0;
    chosen = operation;
    action = what;
}

long file_faults_counted(void) { return counted; }

__attribute__((constructor)) static void arm_rank(void)
{
    const char *order = getenv("FILE_FAULTS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    int of_rank, what, at;
    long operation;
    rank = rank ? rank : getenv("HOROVOD_RANK");
    if (!order || !rank || sscanf(order, "%d %ld %d %n", &of_rank, &operation, &what, &at) < 3 || atoi(rank) != of_rank)
        return;
    file_faults_arm(order + at, operation, what);
    unsetenv("FILE_FAULTS");  // not for what the rank starts
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("FILE_FAULTS_COUNT");
    FILE *file = path && *folder ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", counted);
        fclose(file);
    }
}

// Whether a path, or an open file, is in the folder.
static int is_inside(int descriptor, const char *path)
{
    char link[64], whole[2 * PATH_MAX] = "";
    size_t length = strlen(folder);
    if (!length)
        return 0;
    if (!path || path[0] != '/') {
        snprintf(link, sizeof link, descriptor == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", descriptor);
        ssize_t read = readlink(link, whole, PATH_MAX);
        if (read < 0)
            return 0;
        snprintf(whole + read, sizeof whole - read, "/%s", path ? path : "");
        path = whole;
    }
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

// The error number that this operation fails with; 0: none. A full disk stays full, as does the table of open files.
static int fault(int descriptor, const char *path, int makes_larger)
{
    if (!is_inside(descriptor, path))
        return 0;
    long now = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (!chosen || now < chosen || action == NOTHING)
        return 0;
    if (action == ENOSPC || action == EMFILE)
        return makes_larger ? action : 0;
    if (now > chosen)
        return 0;
    if (action == KILL)
        kill(getpid(), SIGKILL);
    if (action < 0) {
        offset = action == CLOCK_BACK ? -JUMP_SECONDS : JUMP_SECONDS;
        return 0;
    }
    return action;
}

#define FAIL_IF(descriptor, path, makes_larger)                      \
    do {                                                             \
        int number = fault(descriptor, path, makes_larger);          \
        if (number) {                                                \
            errno = number;                                          \
            return -1;                                               \
        }                                                            \
    } while (0)

#define OPEN(name, at, parameters, arguments)                        \
    int name parameters                                              \
    {                                                                \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                \
        FAIL_IF(at, path, action == EMFILE || (flags & O_CREAT));    \
        return REAL(name) arguments;                                 \
    }
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))

// A disk that fills up takes a part of the bytes first.
ssize_t write(int file, const void *bytes, size_t count)
{
    long before = counted;
    int number = fault(file, NULL, action == ENOSPC);
    if (number == ENOSPC && before + 1 == chosen && count > 1)
        return REAL(write)(file, bytes, count / 2);
    if (number) {
        errno = number;
        return -1;
    }
    return REAL(write)(file, bytes, count);
}

ssize_t read(int file, void *bytes, size_t count) { FAIL_IF(file, NULL, 0); return REAL(read)(file, bytes, count); }
int fsync(int file) { FAIL_IF(file, NULL, 0); return REAL(fsync)(file); }
int fdatasync(int file) { FAIL_IF(file, NULL, 0); return REAL(fdatasync)(file); }
int ftruncate64(int file, off64_t size) { FAIL_IF(file, NULL, action == ENOSPC); return REAL(ftruncate64)(file, size); }
int rename(const char *from, const char *to) { FAIL_IF(AT_FDCWD, to, 0); return REAL(rename)(from, to); }
int link(const char *from, const char *to) { FAIL_IF(AT_FDCWD, to, action == ENOSPC); return REAL(link)(from, to); }
int unlink(const char *path) { FAIL_IF(AT_FDCWD, path, 0); return REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { FAIL_IF(at, path, 0); return REAL(unlinkat)(at, path, flags); }
int rmdir(const char *path) { FAIL_IF(AT_FDCWD, path, 0); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { FAIL_IF(AT_FDCWD, path, action == ENOSPC); return REAL(mkdir)(path, mode); }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int code = REAL(clock_gettime)(clock, now);
    if (!code && clock == CLOCK_REALTIME)
        now->tv_sec += offset;
    return code;
}
