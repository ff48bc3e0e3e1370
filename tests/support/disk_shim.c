// disk_shim: a library for LD_PRELOAD that makes calls on files slow, makes them fail, or notes them down. It stands
// for a slow, a full or a broken disk in tests. It is loaded into one command alone:
//
//   LD_PRELOAD=build/cpu/tests/disk_shim.so ORTHANT_SHIM='RULE; RULE' orthant launch CONFIG
//
// A rule is a list of words WORD=VALUE. The first four say which calls it is about, all of them must hold:
//   op=write,fsync   open read write fsync rename mkdir unlink close opendir stat mmap flock; left out: every one
//   path=TEXT        calls on a path with this text in it (of a descriptor: the path that it was opened by)
//   rank=N           in the process with ORTHANT_RANK=N; rank=none: in one without that variable, such as the launcher
//   while=FILE       as long as FILE is there: a test turns the fault on and off
//   nth=N count=K    the N-th such call of the process (from 1; default 1), and K calls from there on (default: all)
// and the rest what happens, in this order:
//   log=FILE         a line "op path" is added to FILE
//   delay_ms=T       the call takes T milliseconds longer
//   signal=N         the process gets signal N before the call (9: it dies there)
//   short=1          a write takes half of the bytes, which is legal
//   errno=NAME       the call is not made and fails: ENOSPC, EIO, ESTALE, ..., or a number
//
// Examples:  op=write,fsync path=checkpoints delay_ms=15       op=fsync path=rank_00001 rank=1 nth=2 count=1 errno=EIO
//
// A close that fails does close, as Linux does it. What the C library does by itself inside of fprintf, fwrite and the
// like is not seen; streams of C++ are. Errors: a rule that is not understood ends the process with code 2.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { most_rules = 16, path_room = 2 * PATH_MAX + 8 };

struct rule {
  char text[1024];
  const char *ops, *path, *rank, *only_while, *log;
  long nth, count, delay_ms, signal;
  int half, error;
  long calls;
};

static struct rule rules[most_rules];
static int rule_count;

// The next definition of a function after this library's.
#define NEXT(name)                                                        \
  ({                                                                      \
    static __typeof__(name)* next_;                                       \
    __typeof__(name)* found_ = __atomic_load_n(&next_, __ATOMIC_RELAXED); \
    if (found_ == NULL) {                                                 \
      found_ = (__typeof__(name)*)dlsym(RTLD_NEXT, #name);                \
      __atomic_store_n(&next_, found_, __ATOMIC_RELAXED);                 \
    }                                                                     \
    found_;                                                               \
  })

// --- rules

static void refuse(const char* what) {
  dprintf(2, "disk_shim: ORTHANT_SHIM: cannot understand '%s'\n", what);
  _exit(2);
}

static long number(const char* text) {
  char* end = NULL;
  const long value = strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 0) {
    refuse(text);
  }
  return value;
}

static int error_named(const char* name) {
  static const struct {
    const char* name;
    int error;
  } known[] = {{"EACCES", EACCES}, {"EBUSY", EBUSY},   {"EDQUOT", EDQUOT},      {"EINTR", EINTR},   {"EIO", EIO},
               {"EMFILE", EMFILE}, {"ENOENT", ENOENT}, {"ENOLCK", ENOLCK},      {"ENOSPC", ENOSPC}, {"EPERM", EPERM},
               {"EROFS", EROFS},   {"ESTALE", ESTALE}, {"ETIMEDOUT", ETIMEDOUT}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    if (strcmp(known[i].name, name) == 0) {
      return known[i].error;
    }
  }
  return (int)number(name);
}

static void read_word(struct rule* rule, char* word) {
  char* value = strchr(word, '=');
  if (value == NULL) {
    refuse(word);
  }
  *value++ = '\0';
  const struct {
    const char* name;
    const char** text;
    long* number;
  } fields[] = {
      {"op", &rule->ops, NULL},           {"path", &rule->path, NULL},         {"rank", &rule->rank, NULL},
      {"while", &rule->only_while, NULL}, {"log", &rule->log, NULL},           {"nth", NULL, &rule->nth},
      {"count", NULL, &rule->count},      {"delay_ms", NULL, &rule->delay_ms}, {"signal", NULL, &rule->signal}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    if (strcmp(fields[i].name, word) == 0) {
      if (fields[i].text != NULL) {
        *fields[i].text = value;
      } else {
        *fields[i].number = number(value);
      }
      return;
    }
  }
  if (strcmp(word, "errno") == 0) {
    rule->error = error_named(value);
  } else if (strcmp(word, "short") == 0) {
    rule->half = (int)number(value);
  } else {
    refuse(word);
  }
}

__attribute__((constructor)) static void read_rules(void) {
  const char* all = getenv("ORTHANT_SHIM");
  const char* rank = getenv("ORTHANT_RANK");
  while (all != NULL && *all != '\0') {
    const size_t length = strcspn(all, ";");
    struct rule* rule = &rules[rule_count];
    if (rule_count == most_rules || length >= sizeof rule->text) {
      refuse(all);
    }
    memset(rule, 0, sizeof *rule);
    rule->nth = 1;
    rule->count = LONG_MAX;
    memcpy(rule->text, all, length);
    char* rest = NULL;
    int words = 0;
    for (char* word = strtok_r(rule->text, " \t\n", &rest); word != NULL; word = strtok_r(NULL, " \t\n", &rest)) {
      read_word(rule, word);
      ++words;
    }
    const int here = rule->rank == NULL || strcmp(rule->rank, rank == NULL || *rank == '\0' ? "none" : rank) == 0;
    rule_count += words > 0 && here ? 1 : 0;
    all += length + (all[length] == ';' ? 1 : 0);
  }
}

static int names(const char* list, const char* op) {
  const size_t length = strlen(op);
  while (list != NULL) {
    if (strncmp(list, op, length) == 0 && (list[length] == ',' || list[length] == '\0')) {
      return 1;
    }
    list = strchr(list, ',');
    list = list == NULL ? NULL : list + 1;
  }
  return 0;
}

// --- what happens

struct effect {
  int error;
  int half;
};

static void write_log(const char* file, const char* op, const char* path) {
  char line[path_room + 32];
  const int length = snprintf(line, sizeof line, "%s %s\n", op, path);
  const int log = NEXT(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0 || NEXT(write)(log, line, (size_t)length) != length) {
    refuse(file);
  }
  NEXT(close)(log);
}

static void wait_for(long milliseconds) {
  struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Leaves errno as it was.
static struct effect before(const char* op, const char* path) {
  struct effect effect = {0, 0};
  const int kept = errno;
  for (struct rule* rule = rules; rule != rules + rule_count; ++rule) {
    if ((rule->ops != NULL && !names(rule->ops, op)) || (rule->path != NULL && strstr(path, rule->path) == NULL) ||
        (rule->only_while != NULL && faccessat(AT_FDCWD, rule->only_while, F_OK, 0) != 0)) {
      continue;
    }
    const long call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_RELAXED);
    if (call < rule->nth || call - rule->nth >= rule->count) {
      continue;
    }
    if (rule->log != NULL) {
      write_log(rule->log, op, path);
    }
    if (rule->delay_ms > 0) {
      wait_for(rule->delay_ms);
    }
    if (rule->signal > 0) {
      raise((int)rule->signal);
    }
    effect.half |= rule->half;
    effect.error = effect.error == 0 ? rule->error : effect.error;
  }
  errno = kept;
  return effect;
}

static void path_of(int fd, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = '\0';
}

static struct effect before_fd(const char* op, int fd) {
  char path[PATH_MAX];
  if (rule_count == 0) {
    return (struct effect){0, 0};
  }
  const int kept = errno;
  path_of(fd, path);
  errno = kept;
  return before(op, path);
}

static struct effect before_at(const char* op, int folder, const char* name) {
  char base[PATH_MAX] = "", path[path_room];
  if (rule_count == 0) {
    return (struct effect){0, 0};
  }
  const int within = folder != AT_FDCWD && name[0] != '/';
  if (within) {
    path_of(folder, base);
  }
  snprintf(path, sizeof path, "%s%s%.*s", base, within ? "/" : "", PATH_MAX, name);
  return before(op, path);
}

// Ends the function with `result` and the rule's errno where a rule says that the call fails.
#define FAIL_BY(effect, result)        \
  do {                                 \
    const int error_ = (effect).error; \
    if (error_ != 0) {                 \
      errno = error_;                  \
      return result;                   \
    }                                  \
  } while (0)

// --- calls on paths

#define OPEN(name)                                  \
  int name(const char* path, int flags, ...) {      \
    va_list rest;                                   \
    va_start(rest, flags);                          \
    const mode_t mode = va_arg(rest, mode_t);       \
    va_end(rest);                                   \
    FAIL_BY(before_at("open", AT_FDCWD, path), -1); \
    return NEXT(name)(path, flags, mode);           \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const mode_t mode = va_arg(rest, mode_t);              \
    va_end(rest);                                          \
    FAIL_BY(before_at("open", folder, path), -1);          \
    return NEXT(name)(folder, path, flags, mode);          \
  }
OPENAT(openat)
OPENAT(openat64)

// A function whose first argument is a path.
#define ON_PATH(type, name, op, failed, declared, given) \
  type name declared {                                   \
    FAIL_BY(before_at(op, AT_FDCWD, path), failed);      \
    return NEXT(name) given;                             \
  }
ON_PATH(FILE*, fopen, "open", NULL, (const char* path, const char* mode), (path, mode))
ON_PATH(FILE*, fopen64, "open", NULL, (const char* path, const char* mode), (path, mode))
ON_PATH(DIR*, opendir, "opendir", NULL, (const char* path), (path))
ON_PATH(int, mkdir, "mkdir", -1, (const char* path, mode_t mode), (path, mode))
ON_PATH(int, unlink, "unlink", -1, (const char* path), (path))
ON_PATH(int, rmdir, "unlink", -1, (const char* path), (path))
ON_PATH(int, remove, "unlink", -1, (const char* path), (path))
ON_PATH(int, stat, "stat", -1, (const char* path, struct stat* out), (path, out))
ON_PATH(int, stat64, "stat", -1, (const char* path, struct stat64* out), (path, out))
ON_PATH(int, lstat, "stat", -1, (const char* path, struct stat* out), (path, out))
ON_PATH(int, lstat64, "stat", -1, (const char* path, struct stat64* out), (path, out))

int mkdirat(int folder, const char* path, mode_t mode) {
  FAIL_BY(before_at("mkdir", folder, path), -1);
  return NEXT(mkdirat)(folder, path, mode);
}

int unlinkat(int folder, const char* path, int flags) {
  FAIL_BY(before_at("unlink", folder, path), -1);
  return NEXT(unlinkat)(folder, path, flags);
}

int rename(const char* from, const char* to) {
  char both[path_room];
  snprintf(both, sizeof both, "%.*s -> %.*s", PATH_MAX, from, PATH_MAX, to);
  FAIL_BY(before("rename", both), -1);
  return NEXT(rename)(from, to);
}

// --- calls on descriptors

#define ON_FD(type, name, op, failed, declared, given) \
  type name declared {                                 \
    FAIL_BY(before_fd(op, fd), failed);                \
    return NEXT(name) given;                           \
  }
ON_FD(DIR*, fdopendir, "opendir", NULL, (int fd), (fd))
ON_FD(int, fsync, "fsync", -1, (int fd), (fd))
ON_FD(int, fdatasync, "fsync", -1, (int fd), (fd))
ON_FD(int, flock, "flock", -1, (int fd, int operation), (fd, operation))
ON_FD(ssize_t, read, "read", -1, (int fd, void* to, size_t n), (fd, to, n))
ON_FD(ssize_t, readv, "read", -1, (int fd, const struct iovec* to, int n), (fd, to, n))
ON_FD(ssize_t, pread, "read", -1, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
ON_FD(ssize_t, pread64, "read", -1, (int fd, void* to, size_t n, off64_t at), (fd, to, n, at))
ON_FD(ssize_t, writev, "write", -1, (int fd, const struct iovec* from, int n), (fd, from, n))

static size_t some_of(struct effect effect, size_t n) {
  return effect.half && n > 1 ? n / 2 : n;
}

ssize_t write(int fd, const void* from, size_t n) {
  const struct effect effect = before_fd("write", fd);
  FAIL_BY(effect, -1);
  return NEXT(write)(fd, from, some_of(effect, n));
}

ssize_t pwrite(int fd, const void* from, size_t n, off_t at) {
  const struct effect effect = before_fd("write", fd);
  FAIL_BY(effect, -1);
  return NEXT(pwrite)(fd, from, some_of(effect, n), at);
}

int close(int fd) {
  const struct effect effect = before_fd("close", fd);
  const int result = NEXT(close)(fd);
  FAIL_BY(effect, -1);
  return result;
}

static struct effect before_map(int flags, int fd) {
  return (flags & MAP_ANONYMOUS) != 0 ? (struct effect){0, 0} : before_fd("mmap", fd);
}

void* mmap(void* where, size_t bytes, int protection, int flags, int fd, off_t at) {
  FAIL_BY(before_map(flags, fd), MAP_FAILED);
  return NEXT(mmap)(where, bytes, protection, flags, fd, at);
}

void* mmap64(void* where, size_t bytes, int protection, int flags, int fd, off64_t at) {
  FAIL_BY(before_map(flags, fd), MAP_FAILED);
  return NEXT(mmap64)(where, bytes, protection, flags, fd, at);
}
