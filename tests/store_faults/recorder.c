/* Records what a process does to the files of one folder, for power_cuts.py.
 *
 * Loaded with LD_PRELOAD; RECORDER_FOLDER is the folder, RECORDER_TRACE the file to append to. A record is
 *     op (1 byte), length of name (2), offset (8), length of data (4), name, data       (little endian)
 * with the name relative to the folder, empty for the folder itself. Ops: o created, w written, t truncated,
 * s synced, u unlinked, r renamed (data is the new name). Reads are of no interest.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096

static char folder[4096];
static size_t folder_length;
static int trace = -1;
static char *names[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);

static void *find(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "recorder: no %s\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin(void) {
    real_write = find("write");
    real_pwrite = find("pwrite64");
    real_open = find("open64");
    real_openat = find("openat64");
    real_close = find("close");
    real_ftruncate = find("ftruncate64");
    real_fsync = find("fsync");
    real_fdatasync = find("fdatasync");
    real_unlink = find("unlink");
    real_rename = find("rename");
    const char *where = getenv("RECORDER_FOLDER"), *to = getenv("RECORDER_TRACE");
    if (!where || !to || !realpath(where, folder))
        return;
    folder_length = strlen(folder);
    int fd = real_open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    trace = fcntl(fd, F_DUPFD_CLOEXEC, FDS);
    real_close(fd);
}

/* The name within the folder, or NULL if it is elsewhere. */
static const char *inside(const char *path) {
    if (trace < 0 || strncmp(path, folder, folder_length))
        return NULL;
    if (path[folder_length] == 0)
        return "";
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static void record(char op, const char *name, uint64_t offset, const void *data, uint32_t length) {
    uint16_t name_length = strlen(name);
    unsigned char head[15];
    head[0] = op;
    memcpy(head + 1, &name_length, 2);
    memcpy(head + 3, &offset, 8);
    memcpy(head + 11, &length, 4);
    struct iovec parts[3] = {{head, 15}, {(void *)name, name_length}, {(void *)data, length}};
    ssize_t total = 15 + (ssize_t)name_length + length;
    if (writev(trace, parts, 3) != total) {
        fprintf(stderr, "recorder: cannot write the trace\n");
        abort();
    }
}

#define KNOWN(fd) ((fd) >= 0 && (fd) < FDS && names[fd])

static int opened(int fd, const char *path, int flags, int existed) {
    const char *name = fd >= 0 && fd < FDS ? inside(path) : NULL;
    if (!name)
        return fd;
    pthread_mutex_lock(&lock);
    names[fd] = strdup(name);
    if (!existed)
        record('o', name, 0, NULL, 0);
    else if (flags & O_TRUNC)
        record('t', name, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

static int open_any(const char *path, int flags, mode_t mode) {
    struct stat there;
    int existed = !inside(path) || stat(path, &there) == 0;
    return opened(real_open(path, flags, mode), path, flags, existed);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_any(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return path[0] == '/' ? open_any(path, flags, mode) : real_openat(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return path[0] == '/' ? open_any(path, flags, mode) : real_openat(at, path, flags, mode);
}

int close(int fd) {
    if (KNOWN(fd)) {
        free(names[fd]);
        names[fd] = NULL;
    }
    return real_close(fd);
}

static ssize_t written(int fd, const void *data, ssize_t done, off_t offset) {
    if (done > 0) {
        pthread_mutex_lock(&lock);
        record('w', names[fd], offset, data, done);
        pthread_mutex_unlock(&lock);
    }
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (!KNOWN(fd))
        return real_write(fd, data, length);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    return written(fd, data, real_write(fd, data, length), offset);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    ssize_t done = real_pwrite(fd, data, length, offset);
    return KNOWN(fd) ? written(fd, data, done, offset) : done;
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return pwrite(fd, data, length, offset); }

static int truncated(int fd, off_t length) {
    int result = real_ftruncate(fd, length);
    if (!result && KNOWN(fd))
        record('t', names[fd], length, NULL, 0);
    return result;
}
int ftruncate(int fd, off_t length) { return truncated(fd, length); }
int ftruncate64(int fd, off_t length) { return truncated(fd, length); }

static int synced(int fd, int result) {
    if (!result && KNOWN(fd))
        record('s', names[fd], 0, NULL, 0);
    return result;
}
int fsync(int fd) { return synced(fd, real_fsync(fd)); }
int fdatasync(int fd) { return synced(fd, real_fdatasync(fd)); }

int unlink(const char *path) {
    int result = real_unlink(path);
    const char *name = inside(path);
    if (!result && name)
        record('u', name, 0, NULL, 0);
    return result;
}

int rename(const char *from, const char *to) {
    int result = real_rename(from, to);
    const char *old = inside(from), *new = inside(to);
    if (!result && old && new)
        record('r', old, 0, new, strlen(new));
    return result;
}
