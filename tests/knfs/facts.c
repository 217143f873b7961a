// What the kernel's NFSv4.2 client does between two mounts of one export:
//   facts A B SERVER_DIR [stat-wait seconds]
// A and B are the mounts, SERVER_DIR the exported directory as the server sees it.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char *A, *B, *S;
static char path[16][512];
static int turn;
static char *at(const char *mount, const char *name) {
    char *p = path[turn++ % 16];
    snprintf(p, 512, "%s/%s", mount, name);
    return p;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void nap(double s) { usleep((useconds_t)(s * 1e6)); }
static const char *err(int r) { return r >= 0 ? "ok" : strerrorname_np(errno); }
static void put(const char *p, const char *text, int flags) {
    int fd = open(p, O_WRONLY | flags, 0666);
    if (fd < 0) { printf("  (open %s: %s)\n", p, err(fd)); return; }
    if (write(fd, text, strlen(text)) < 0) printf("  (write %s: %m)\n", p);
    close(fd);
}
static long size_of(const char *p) { struct stat s; return stat(p, &s) ? -1 : s.st_size; }
static long size_sync(const char *p, int flags) {
    struct statx s;
    return statx(AT_FDCWD, p, flags, STATX_SIZE | STATX_MTIME, &s) ? -1 : (long)s.stx_size;
}

static void close_to_open(int rounds, int how) {
    static const char *names[] = {"O_TRUNC and rewritten", "same length overwritten", "appended", "replaced by rename", "new name each round",
        "replaced by rename, B has the first one open"};
    int stale = 0, failed = 0, stat_stale = 0, pread_stale = 0;
    double t = now();
    char first[32];
    snprintf(first, sizeof first, "cto%d", how);  // not the name of the last: B would know that
    put(at(A, first), "0000000000000000", O_CREAT | O_TRUNC);
    int held = how < 2 || how == 5 ? open(at(B, first), O_RDONLY) : -1;
    for (int i = 1; i <= rounds; i++) {
        char want[64], got[64] = "", name[32];
        strcpy(name, first);
        snprintf(want, sizeof want, "%016d", i);
        long offset = 0;
        if (how == 0) put(at(A, name), want, O_TRUNC);
        if (how == 1) put(at(A, name), want, 0);
        if (how == 2) { put(at(A, name), want, O_APPEND); offset = 16L * i; }
        if (how == 3 || how == 5) { put(at(A, "cto.new"), want, O_CREAT | O_TRUNC); rename(at(A, "cto.new"), at(A, name)); }
        if (how == 4) { snprintf(name, sizeof name, "cto.%d", i); put(at(A, name), want, O_CREAT); }
        if (how < 2) {  // through a descriptor that B has had open all along
            char g[64] = "";
            if (pread(held, g, 63, 0) < 0 || strcmp(g, want)) pread_stale++;
        }
        int fd = open(at(B, name), O_RDONLY);
        if (fd < 0) { failed++; if (failed == 1) printf("  (first failure: %m)\n"); continue; }
        struct stat st;
        if (pread(fd, got, 63, offset) < 0) failed++;
        else if (strcmp(got, want)) stale++;
        if (fstat(fd, &st) || st.st_size != offset + 16) stat_stale++;
        close(fd);
        if (how == 4) unlink(at(B, name));
    }
    if (held >= 0) close(held);
    printf("  %s: %d rounds, %d stale reads, %d failed opens/reads, %d stale or failed fstat", names[how], rounds, stale, failed, stat_stale);
    if (how < 2) printf("; by a descriptor already open on B: %d stale", pread_stale);
    printf(", %.1f s\n", now() - t);
}

/* How long until what `probe` says changes, in seconds; -1: not within limit. */
static double until(int (*probe)(void), double limit) {
    double t = now();
    while (!probe()) {
        if (now() - t > limit) return -1;
        nap(0.02);
    }
    return now() - t;
}
static char probed[512];
static long old_size;
static int held_fd;
static int by_stat(void) { return size_of(probed) != old_size; }
static int by_fstat(void) { struct stat s; return !fstat(held_fd, &s) && s.st_size != old_size; }
static int by_sync(void) { return size_sync(probed, AT_STATX_FORCE_SYNC) != old_size; }
static int by_open(void) { int fd = open(probed, O_RDONLY); struct stat s; fstat(fd, &s); close(fd); return s.st_size != old_size; }
static int by_opath(void) { int fd = open(probed, O_PATH); struct stat s; fstat(fd, &s); close(fd); return s.st_size != old_size; }
static int found_stat(void) { return size_of(probed) >= 0; }
static int found_open(void) { int fd = open(probed, O_RDONLY); if (fd >= 0) close(fd); return fd >= 0; }
static int found_sync(void) { return size_sync(probed, AT_STATX_FORCE_SYNC) >= 0; }
static int gone_stat(void) { return size_of(probed) < 0; }
static void say(const char *what, double s) {
    if (s < 0) printf("  %s: not within the limit\n", what); else printf("  %s: %.2f s\n", what, s);
    fflush(stdout);
}

static char fresh[64];
static int by_content(void) { char g[64] = ""; int fd = open(probed, O_RDONLY); if (fd < 0) return 0; if (pread(fd, g, 63, 0) < 0) {} close(fd); return !strcmp(g, fresh); }
static void replaced(double limit) {
    static const char *what[] = {"replaced by rename on A, B polls open+read", "the same, B had the file open", "the same, B opens and closes the directory first",
        "the same, B does statx FORCE_SYNC on the directory first", "the same, B does statx FORCE_SYNC on the name first", "the same, B knew it for 12 s"};
    for (int i = 0; i < 6; i++) {
        char dir[32], name[64], other[64];
        snprintf(dir, sizeof dir, "rep.%d", i); snprintf(name, sizeof name, "%s/x", dir); snprintf(other, sizeof other, "%s/new", dir);
        mkdir(at(A, dir), 0777);
        put(at(A, name), "before", O_CREAT);
        strcpy(probed, at(B, name)); strcpy(fresh, "before");
        if (!by_content()) printf("  (not there)\n");
        int held = i == 1 ? open(probed, O_RDONLY) : -1;
        if (i == 5) for (double t = now(); now() - t < 12;) { nap(0.5); by_content(); }
        put(at(A, other), "after", O_CREAT); rename(at(A, other), at(A, name)); strcpy(fresh, "after");
        if (i == 2) close(open(at(B, dir), O_RDONLY | O_DIRECTORY));
        if (i == 3) size_sync(at(B, dir), AT_STATX_FORCE_SYNC);
        if (i == 4) size_sync(at(B, name), AT_STATX_FORCE_SYNC);
        say(what[i], until(by_content, limit));
        if (held >= 0) close(held);
    }
}
static void stat_staleness(double limit) {
    struct { const char *what; int (*probe)(void); int warm; } cases[] = {
        {"stat(2), file known to B for 0 s", by_stat, 0}, {"stat(2), file polled by B for 12 s unchanged", by_stat, 12},
        {"stat(2), file polled by B for 40 s unchanged", by_stat, 40},
        {"fstat on a descriptor open on B", by_fstat, 0}, {"statx FORCE_SYNC", by_sync, 0},
        {"open and fstat", by_open, 0}, {"open O_PATH and fstat", by_opath, 0}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "st.%u", i);
        put(at(A, name), "1234", O_CREAT);
        strcpy(probed, at(B, name));
        held_fd = -1;
        if (cases[i].probe == by_fstat) held_fd = open(probed, O_RDONLY);
        old_size = size_of(probed);
        for (double t = now(); now() - t < cases[i].warm;) { nap(0.5); size_of(probed); }
        put(at(A, name), "5", O_APPEND);
        say(cases[i].what, until(cases[i].probe, limit));
        if (held_fd >= 0) close(held_fd);
    }
}

static void negative(double limit) {
    struct { const char *what; int (*probe)(void); int warm, help; } cases[] = {
        {"create, B polls stat", found_stat, 0, 0}, {"create, B polls stat (ENOENT known for 12 s)", found_stat, 12, 0},
        {"create, B polls open(O_RDONLY)", found_open, 0, 0}, {"create, B polls statx FORCE_SYNC", found_sync, 0, 0},
        {"create, B opens and reads the directory, then stat", found_stat, 0, 1},
        {"create, B does statx FORCE_SYNC on the directory, then stat", found_stat, 0, 2},
        {"create, B opens and closes the directory (reads nothing), then stat", found_stat, 0, 3},
        {"create, B creates another name there, then stat", found_stat, 0, 4}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[32], name[64];
        snprintf(dir, sizeof dir, "neg.%u", i);
        snprintf(name, sizeof name, "%s/x", dir);
        mkdir(at(A, dir), 0777);
        strcpy(probed, at(B, name));
        found_stat();
        for (double t = now(); now() - t < cases[i].warm;) { nap(0.5); found_stat(); }
        found_stat();
        put(at(A, name), "1", O_CREAT);
        if (cases[i].help == 1) { DIR *d = opendir(at(B, dir)); while (readdir(d)) {} closedir(d); }
        if (cases[i].help == 2) size_sync(at(B, dir), AT_STATX_FORCE_SYNC);
        if (cases[i].help == 3) close(open(at(B, dir), O_RDONLY | O_DIRECTORY));
        if (cases[i].help == 4) { char o[80]; snprintf(o, sizeof o, "%s/other", dir); put(at(B, o), "1", O_CREAT); }
        say(cases[i].what, until(cases[i].probe, limit));
    }
    // the two that go to the server anyway
    mkdir(at(A, "neg.c"), 0777);
    strcpy(probed, at(B, "neg.c/x"));
    found_stat();
    put(at(A, "neg.c/x"), "1", O_CREAT);
    int fd = open(probed, O_CREAT | O_EXCL | O_WRONLY, 0666);
    printf("  open(O_CREAT|O_EXCL) on B where A has created and B knows ENOENT: %s\n", err(fd));
    if (fd >= 0) close(fd);
    mkdir(at(A, "neg.m"), 0777);
    strcpy(probed, at(B, "neg.m/x"));
    found_stat();
    mkdir(at(A, "neg.m/x"), 0777);
    printf("  mkdir on B likewise: %s\n", err(mkdir(probed, 0777)));
    // positive: unlinked on A, still there by stat on B?
    for (int i = 0; i < 2; i++) {
        put(at(A, "gone"), "1", O_CREAT);
        strcpy(probed, at(B, "gone"));
        found_stat();
        unlink(at(A, "gone"));
        if (i == 0) say("unlink on A, B polls stat until ENOENT", until(gone_stat, limit));
        else { int f = open(probed, O_RDONLY); printf("  unlink on A, B opens at once (its stat knows it): %s\n", err(f)); if (f >= 0) close(f); }
    }
    // readdir
    mkdir(at(A, "list"), 0777);
    DIR *d = opendir(at(B, "list")); while (readdir(d)) {} closedir(d);
    int misses = 0;
    for (int i = 0; i < 200; i++) {
        char name[64]; snprintf(name, sizeof name, "list/%d", i); put(at(A, name), "", O_CREAT);
        d = opendir(at(B, "list")); int n = 0; while (readdir(d)) n++; closedir(d);
        if (n != i + 3) misses++;
    }
    printf("  create on A, opendir+readdir on B at once: %d of 200 listings without the new name\n", misses);
}

static void *drop(const char *why) {
    (void)why;
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (fd >= 0) { if (write(fd, "1", 1) < 0) {} close(fd); }
    return 0;
}
static void open_unlinked(void) {
    static const char *how[] = {"unlinked", "renamed to another name", "renamed over"};
    for (int also = 0; also < 2; also++)
        for (int i = 0; i < 3; i++) {
            static char block[1 << 20], got[1 << 20];
            char victim[32], elsewhere[32]; snprintf(victim, 32, "victim%d%d", also, i); snprintf(elsewhere, 32, "elsewhere%d%d", also, i);
            memset(block, 'a' + i, sizeof block);
            int fd = open(at(A, victim), O_CREAT | O_TRUNC | O_WRONLY, 0666);
            if (write(fd, block, sizeof block) < 0) {} close(fd);
            int b = open(at(B, victim), O_RDONLY), a = also ? open(at(A, victim), O_RDONLY) : -1;
            if (pread(b, got, 4096, 0) < 0) {}
            int r = 0;
            if (i == 0) r = unlink(at(A, victim));
            if (i == 1) r = rename(at(A, victim), at(A, elsewhere));
            if (i == 2) { put(at(A, "new"), "new", O_CREAT); r = rename(at(A, "new"), at(A, victim)); }
            if (r) printf("  (%m)\n");
            printf("  %s on A, open on B%s:", how[i], also ? " and on A" : " only");
            for (int wait = 0; wait < 2; wait++) {
                if (wait) nap(4);  // past acregmin
                drop("");
                struct stat st;
                int s = fstat(b, &st); const char *se = err(s); unsigned nl = s ? 0 : st.st_nlink;
                ssize_t n = pread(b, got, sizeof got, 0);
                printf(" %s: fstat %s nlink %u, pread %s%s;", wait ? "4 s later" : "at once", se, nl, err(n),
                       n < 0 ? "" : n == sizeof got && !memcmp(got, block, sizeof got) ? " right" : " WRONG");
            }
            if (also) {
                DIR *d = opendir(S); struct dirent *e; int silly = 0;
                while ((e = readdir(d))) silly += !strncmp(e->d_name, ".nfs", 4);
                closedir(d);
                close(a); nap(0.5); drop("");
                struct stat st; int s = fstat(b, &st); const char *se = err(s);
                ssize_t n = pread(b, got, sizeof got, 0);
                printf(" %d .nfs file(s) meanwhile; after A's close: fstat %s, pread %s", silly, se, err(n));
            }
            printf("\n"); fflush(stdout);
            close(b);
            unlink(at(S, victim)); unlink(at(S, elsewhere)); unlink(at(S, "new"));
        }
    // a writer on B
    for (int i = 0; i < 2; i++) {
        char victim[32]; snprintf(victim, 32, "w%d", i);
        put(at(A, victim), "abcdef", O_CREAT | O_TRUNC);
        int b = open(at(B, victim), O_RDWR);
        unlink(at(A, victim));
        ssize_t w = pwrite(b, "XYZ", 3, 0); const char *we = err(w);
        int s = fsync(b);
        printf("  unlinked on A, open for writing on B only: pwrite %s, fsync %s", we, err(s));
        printf(", close %s\n", err(close(b)));
    }
}

static int ofd(int fd, int cmd, short type, long start, long len) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int r = fcntl(fd, cmd, &l);
    if (cmd == F_OFD_GETLK && r == 0) return l.l_type;
    return r;
}
static void quit(int s) { (void)s; _exit(9); }
static void locks(void) {
    put(at(A, "lock"), "0123456789", O_CREAT | O_TRUNC);
    int a = open(at(A, "lock"), O_RDWR), a2 = open(at(A, "lock"), O_RDWR), b = open(at(B, "lock"), O_RDWR);
    int r = ofd(a, F_OFD_SETLK, F_WRLCK, 0, 4);
    printf("  F_OFD_SETLK write 0+4 on A: %s\n", err(r));
    r = ofd(a2, F_OFD_SETLK, F_WRLCK, 2, 4);
    printf("  overlapping, other descriptor of the same process, A: %s\n", err(r));
    r = ofd(b, F_OFD_SETLK, F_WRLCK, 2, 4);
    printf("  overlapping, on B: %s\n", err(r));
    r = ofd(a2, F_OFD_SETLK, F_WRLCK, 4, 4);
    printf("  beside it, other descriptor, A: %s\n", err(r));
    r = ofd(b, F_OFD_GETLK, F_WRLCK, 0, 4);
    printf("  F_OFD_GETLK on B finds: %s\n", r == F_WRLCK ? "a write lock" : r == F_UNLCK ? "nothing" : err(r));
    r = ofd(a2, F_OFD_GETLK, F_WRLCK, 0, 4);
    printf("  F_OFD_GETLK on A, other descriptor, finds: %s\n", r == F_WRLCK ? "a write lock" : r == F_UNLCK ? "nothing" : err(r));
    int d = dup(a2);
    close(d);
    r = ofd(b, F_OFD_SETLK, F_WRLCK, 4, 4);
    printf("  after close of a duplicate, still held against B: %s\n", err(r));
    int other = open(at(A, "lock"), O_RDWR); close(other);
    r = ofd(b, F_OFD_SETLK, F_WRLCK, 0, 4);
    printf("  after open+close of the file elsewhere in the process, still held against B: %s\n", err(r));
    int status;
    double t = now();
    pid_t p = fork();
    if (p == 0) { close(a); signal(SIGALRM, quit); alarm(90); _exit(ofd(b, F_OFD_SETLKW, F_WRLCK, 0, 4) ? 1 : 0); }
    nap(2); close(a);
    waitpid(p, &status, 0);
    printf("  F_OFD_SETLKW on B, released (by close) on A after 2 s: %s after %.2f s\n", WIFEXITED(status) && !WEXITSTATUS(status) ? "ok" : "failed", now() - t);
    ofd(b, F_OFD_SETLK, F_UNLCK, 0, 0);
    // a blocked wait can be interrupted
    ofd(a2, F_OFD_SETLK, F_WRLCK, 0, 0);
    t = now(); p = fork();
    if (p == 0) { struct sigaction sa = {.sa_handler = SIG_DFL}; sigaction(SIGALRM, &sa, 0); alarm(1); ofd(b, F_OFD_SETLKW, F_WRLCK, 0, 4); _exit(1); }
    waitpid(p, &status, 0);
    printf("  F_OFD_SETLKW that waits and is killed: ended by signal %d after %.2f s\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0, now() - t);
    close(a2); close(b);
    // a shared lock needs a descriptor for reading, an exclusive one for writing
    a = open(at(A, "lock"), O_RDONLY); a2 = open(at(A, "lock"), O_RDONLY); b = open(at(B, "lock"), O_RDONLY);
    printf("  F_OFD_SETLK read on a read-only descriptor: %s\n", err(ofd(a, F_OFD_SETLK, F_RDLCK, 0, 4)));
    printf("  the same on B: %s\n", err(ofd(b, F_OFD_SETLK, F_RDLCK, 0, 4)));
    printf("  F_OFD_SETLK write on a read-only descriptor: %s\n", err(ofd(a2, F_OFD_SETLK, F_WRLCK, 0, 4)));
    close(a); close(a2); close(b);
    a = open(at(A, "lock"), O_RDWR); a2 = open(at(A, "lock"), O_RDWR); b = open(at(B, "lock"), O_RDWR);
    printf("  flock LOCK_EX on A: %s\n", err(flock(a, LOCK_EX | LOCK_NB)));
    printf("  flock, other descriptor of the same process, A: %s\n", err(flock(a2, LOCK_EX | LOCK_NB)));
    printf("  flock on B: %s\n", err(flock(b, LOCK_EX | LOCK_NB)));
    printf("  F_OFD_SETLK on B against A's flock: %s\n", err(ofd(b, F_OFD_SETLK, F_WRLCK, 0, 4)));
    printf("  F_OFD_SETLK on A, same descriptor as the flock: %s\n", err(ofd(a, F_OFD_SETLK, F_WRLCK, 0, 4)));
    printf("  F_OFD_SETLK on A, other descriptor than the flock: %s\n", err(ofd(a2, F_OFD_SETLK, F_WRLCK, 8, 4)));
    close(a); close(a2);
    printf("  flock on B after A's close: %s\n", err(flock(b, LOCK_EX | LOCK_NB)));
    a = open(at(A, "lock"), O_RDONLY);
    flock(b, LOCK_UN);
    printf("  flock LOCK_EX on a read-only descriptor: %s\n", err(flock(a, LOCK_EX | LOCK_NB)));
    close(a); close(b);
    // data is fresh under a lock though the file was open before
    put(at(A, "lock"), "0000", O_TRUNC);
    a = open(at(A, "lock"), O_RDWR); b = open(at(B, "lock"), O_RDWR);
    int stale = 0, failed = 0; char got[8];
    if (pread(b, got, 4, 0) < 0) {}
    for (int i = 1; i <= 300; i++) {
        char w[8], g[8] = ""; snprintf(w, sizeof w, "%04d", i);
        if (ofd(a, F_OFD_SETLKW, F_WRLCK, 0, 0)) failed++;
        if (pwrite(a, w, 4, 0) < 0) {} ofd(a, F_OFD_SETLK, F_UNLCK, 0, 0);
        if (ofd(b, F_OFD_SETLKW, F_RDLCK, 0, 0)) failed++;
        if (pread(b, g, 4, 0) < 0) {} ofd(b, F_OFD_SETLK, F_UNLCK, 0, 0);
        if (strcmp(w, g)) stale++;
    }
    printf("  lock, write, unlock on A; lock, read, unlock on B, both open all along: %d of 300 stale, %d locks failed\n", stale, failed);
    close(a); close(b);
    // xattr, O_DIRECT, O_TMPFILE, fallocate, SEEK_HOLE, copy_file_range, RENAME_*
    a = open(at(A, "feat"), O_CREAT | O_RDWR, 0666);
    printf("  user xattr: %s", err(fsetxattr(a, "user.x", "1", 1, 0)));
    printf("; O_DIRECT: "); r = open(at(A, "feat"), O_RDWR | O_DIRECT); printf("%s", err(r)); close(r);
    printf("; O_TMPFILE: "); r = open(A, O_TMPFILE | O_RDWR, 0600); printf("%s", err(r)); if (r >= 0) close(r);
    printf("; fallocate: %s", err(fallocate(a, 0, 0, 65536)));
    printf("; PUNCH_HOLE: %s", err(fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096)));
    printf("; ZERO_RANGE: %s", err(fallocate(a, FALLOC_FL_ZERO_RANGE, 0, 4096)));
    printf("; KEEP_SIZE: %s", err(fallocate(a, FALLOC_FL_KEEP_SIZE, 65536, 4096)));
    printf("; SEEK_HOLE: %s", err(lseek(a, 0, SEEK_HOLE) < 0 ? -1 : 0));
    int c = open(at(A, "feat2"), O_CREAT | O_RDWR, 0666); loff_t x = 0, y = 0;
    printf("; copy_file_range: %s", err((int)copy_file_range(a, &x, c, &y, 65536, 0)));
    printf("; RENAME_NOREPLACE: %s", err(renameat2(AT_FDCWD, at(A, "feat"), AT_FDCWD, at(A, "feat3"), RENAME_NOREPLACE)));
    printf("; RENAME_EXCHANGE: %s", err(renameat2(AT_FDCWD, at(A, "feat"), AT_FDCWD, at(A, "feat2"), RENAME_EXCHANGE)));
    printf("; mkfifo: %s", err(mkfifo(at(A, "fifo"), 0600)));
    printf("; mknod c: %s", err(mknod(at(A, "chr"), S_IFCHR | 0600, 0x103)));
    char proc[64]; snprintf(proc, sizeof proc, "/proc/self/fd/%d", c);
    printf("; linkat from /proc/self/fd: %s", err(linkat(AT_FDCWD, proc, AT_FDCWD, at(A, "linked"), AT_SYMLINK_FOLLOW)));
    struct { struct file_handle h; char room[128]; } h; int id; h.h.handle_bytes = 128;
    printf("; name_to_handle_at: %s", err(name_to_handle_at(AT_FDCWD, at(A, "feat2"), &h.h, &id, 0)));
    int m = open(A, O_RDONLY); r = open_by_handle_at(m, &h.h, O_RDONLY);
    printf("; open_by_handle_at: %s\n", err(r));
    struct stat s1, s2; stat(at(A, "feat2"), &s1); stat(at(B, "feat2"), &s2);
    printf("  st_dev %lx and %lx, st_ino %lu and %lu, st_blksize %ld\n", s1.st_dev, s2.st_dev, s1.st_ino, s2.st_ino, (long)s1.st_blksize);
}

static void *as_user(void *unused) {
    (void)unused;
    gid_t groups[] = {2000, 2001};
    struct stat st;
    // raw system calls: of this thread alone
    printf("  raw setgroups %s", err((int)syscall(SYS_setgroups, 2, groups)));
    syscall(SYS_setfsgid, 1001); syscall(SYS_setfsuid, 1000);
    printf(", fsuid now %ld, fsgid now %ld\n", syscall(SYS_setfsuid, -1), syscall(SYS_setfsgid, -1));
    int r = mkdir(at(A, "id/mine"), 0755); const char *e = err(r);
    if (!r) stat(at(S, "id/mine"), &st);
    printf("  mkdir in a directory of mode 1777: %s, owner at the server %d:%d\n", e, r ? -1 : (int)st.st_uid, r ? -1 : (int)st.st_gid);
    int fd = open(at(A, "id/file"), O_CREAT | O_EXCL | O_RDWR, 0600); e = err(fd);
    if (fd >= 0) stat(at(S, "id/file"), &st);
    printf("  create: %s, owner %d:%d, write %s\n", e, (int)st.st_uid, (int)st.st_gid, err((int)write(fd, "x", 1)));
    close(fd);
    fd = open(at(A, "id/root-only"), O_RDONLY); printf("  open of root's 0600 file: %s\n", err(fd)); if (fd >= 0) close(fd);
    fd = open(at(A, "id/group/x"), O_CREAT | O_RDWR, 0644); printf("  create in 0770 root:2001 (a supplementary group): %s\n", err(fd)); if (fd >= 0) close(fd);
    fd = open(at(A, "id/othergroup/x"), O_CREAT | O_RDWR, 0644); printf("  create in 0770 root:2002 (not a group of it): %s\n", err(fd)); if (fd >= 0) close(fd);
    printf("  chown of its own file to root: %s\n", err(chown(at(A, "id/file"), 0, 0)));
    printf("  chmod of root's file: %s\n", err(chmod(at(A, "id/root-only"), 0666)));
    printf("  access(2) by faccessat AT_EACCESS of root's 0600 file: %s\n", err(faccessat(AT_FDCWD, at(A, "id/root-only"), R_OK, AT_EACCESS)));
    syscall(SYS_setfsuid, 0); syscall(SYS_setfsgid, 0); syscall(SYS_setgroups, 0, 0);
    fd = open(at(A, "id/root-only"), O_RDONLY); printf("  back to 0: open of root's 0600 file: %s\n", err(fd)); if (fd >= 0) close(fd);
    return 0;
}
static double timed(int n, void (*f)(int)) { double t = now(); for (int i = 0; i < n; i++) f(i); return (now() - t) / n * 1e6; }
static void switching(int i) {
    gid_t g[] = {2000, 2001 + (i & 1)};
    syscall(SYS_setgroups, 2, g); syscall(SYS_setfsgid, 1001); syscall(SYS_setfsuid, 1000);
    syscall(SYS_setfsuid, 0); syscall(SYS_setfsgid, 0); syscall(SYS_setgroups, 0, 0);
}
static void identity(void) {
    umask(0);
    mkdir(at(S, "id"), 01777); chmod(at(S, "id"), 01777);
    put(at(S, "id/root-only"), "secret", O_CREAT); chmod(at(S, "id/root-only"), 0600);
    mkdir(at(S, "id/group"), 0770); if (chown(at(S, "id/group"), 0, 2001)) {} chmod(at(S, "id/group"), 0770);
    mkdir(at(S, "id/othergroup"), 0770); if (chown(at(S, "id/othergroup"), 0, 2002)) {} chmod(at(S, "id/othergroup"), 0770);
    pthread_t t;
    pthread_create(&t, 0, as_user, 0); pthread_join(t, 0);
    int fd = open(at(A, "id/by-main"), O_CREAT | O_RDWR, 0644);
    struct stat st; stat(at(S, "id/by-main"), &st); close(fd);
    printf("  the main thread meanwhile creates as %d:%d\n", (int)st.st_uid, (int)st.st_gid);
    // a descriptor opened by one identity, written by another
    syscall(SYS_setfsuid, 1000); fd = open(at(A, "id/mixed"), O_CREAT | O_RDWR, 0600); syscall(SYS_setfsuid, 0);
    ssize_t w = write(fd, "abc", 3); int f = fsync(fd);
    printf("  opened as 1000 (0600), written as root: %s, fsync %s\n", err((int)w), err(f)); close(fd);
    fd = open(at(A, "id/root-only"), O_RDWR);
    syscall(SYS_setfsuid, 1000); w = write(fd, "abc", 3); f = fsync(fd); char c; ssize_t n = pread(fd, &c, 1, 0); struct stat s2; int fs = fstat(fd, &s2); int ft = ftruncate(fd, 1); const char *fte = err(ft); syscall(SYS_setfsuid, 0);
    printf("  root's 0600 file opened as root, used as 1000: write %s, fsync %s, pread %s, fstat %s, ftruncate %s\n", err((int)w), err(f), err((int)n), err(fs), fte); close(fd);
    printf("  the six calls of one change of identity and back: %.2f us\n", timed(20000, switching));
}

int main(int argc, char **argv) {
    if (argc < 4) { fprintf(stderr, "facts A B SERVER_DIR [SECONDS [PARTS]]\n"); return 2; }
    A = argv[1]; B = argv[2]; S = argv[3];
    double limit = argc > 4 ? atof(argv[4]) : 90;
    const char *parts = argc > 5 ? argv[5] : "licusrn";
    setvbuf(stdout, 0, _IOLBF, 0);
    umask(0);
    if (strchr(parts, 'l')) { printf("locks\n"); locks(); }
    if (strchr(parts, 'i')) { printf("identity\n"); identity(); }
    if (strchr(parts, 'c')) {
        printf("close-to-open, written on A, opened and read on B at once\n");
        for (int i = 0; i < 6; i++) close_to_open(1000, i);
    }
    if (strchr(parts, 'u')) { printf("a file open on B\n"); open_unlinked(); }
    if (strchr(parts, 'r')) { printf("how long a replaced file is the old one on B\n"); replaced(limit); }
    if (strchr(parts, 's')) { printf("how long what B sees by name is old, after a change on A\n"); stat_staleness(limit); }
    if (strchr(parts, 'n')) { printf("names\n"); negative(limit); }
    return 0;
}
