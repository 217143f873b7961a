//! Malformed files, one for each kind of error, with the exact error.

use super::{parse, with};

/// A file and its one-line error.
type Case = (&'static str, &'static str);

#[track_caller]
fn refused(cases: &[Case]) {
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap_err(), *expected, "for:\n{text}");
    }
}

/// [`refused`] for lines after an otherwise valid file.
#[track_caller]
fn refused_after_valid(cases: &[Case]) {
    for (more, expected) in cases {
        assert_eq!(parse(&with(more)).unwrap_err(), *expected, "for:\n{more}");
    }
}

#[test]
fn invalid_toml_is_refused_at_its_line() {
    refused(&[
        ("[volume\nname = 'v'\n", "v.toml:1: not valid TOML: unclosed table, expected `]`"),
        (
            "[volume]\nname = 'v'\nname = 'w'\n",
            "v.toml:3: not valid TOML at \"name\": duplicate key",
        ),
        (
            "[volume]\nname = v\n",
            "v.toml:2: not valid TOML at \"v\": string values must be quoted, expected literal string",
        ),
        ("[volume]\nname = 'v\n", "v.toml:2: not valid TOML: invalid literal string, expected `'`"),
        ("[volume]\nname\n", "v.toml:2: not valid TOML: key with no value, expected `=`"),
        ("a = [[[\n", "v.toml:1: not valid TOML: unclosed array, expected `]`"),
    ]);
}

#[test]
fn missing_or_mistyped_keys_are_refused() {
    refused(&[
        ("", "v.toml: key `volume.name` is missing; name the volume in [volume]"),
        (
            "[volume]\nmode = 'shared'\n",
            "v.toml:1: key `volume.name` is missing; name the volume in [volume]",
        ),
        (
            "[volume]\nname = 'v'\n[[replica]]\npath = '/a'\n",
            "v.toml:1: key `volume.mode` is missing; write \"shared\" if all replicas are one file system, \"copies\" if they are independent trees with the same content",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'shared'\n",
            "v.toml: key `replica` is missing; add at least one [[replica]] with a path or an address",
        ),
        (
            "replica = []\n[volume]\nname = 'v'\nmode = 'shared'\n",
            "v.toml:1: key `replica` is missing; add at least one [[replica]] with a path or an address",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'share'\n",
            "v.toml:3: key `volume.mode`: \"share\" is not valid; use \"shared\" or \"copies\" (did you mean \"shared\"?)",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'raid5'\n",
            "v.toml:3: key `volume.mode`: \"raid5\" is not valid; use \"shared\" or \"copies\"",
        ),
        (
            "[volume]\nname = ''\nmode = 'shared'\n",
            "v.toml:2: key `volume.name`: \"\" is not a name; use 1 to 64 letters, digits, `.`, `_`, `-`, a letter or digit first",
        ),
        (
            "[volume]\nname = '-v'\nmode = 'shared'\n",
            "v.toml:2: key `volume.name`: \"-v\" is not a name; use 1 to 64 letters, digits, `.`, `_`, `-`, a letter or digit first",
        ),
        (
            "[[volume]]\nname = 'v'\n",
            "v.toml:1: key `volume`: must be one table; begin it once, with [volume]",
        ),
        (
            "volume = 'v'\n",
            "v.toml:1: key `volume`: must be one table; begin it once, with [volume]",
        ),
        ("name = 'v'\n", "v.toml:1: key `name` is not known; did you mean `name` in [volume]?"),
        (
            "colour = 'red'\n",
            "v.toml:1: key `colour` is not known; the tables are [volume], [[replica]], [read], [write], [memory], [fuse], [metrics], [log], [placement], [[affinity]]",
        ),
        (
            "volume.name = 3\n",
            "v.toml:1: key `volume.name`: invalid type: integer `3`, expected a string",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'shared'\n[replica]\npath = '/a'\n",
            "v.toml:4: key `replica`: must be a list of tables; begin each one with [[replica]]",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'shared'\nreplica = ['/a']\n",
            "v.toml:4: key `volume.replica` is not known; [volume] has the keys `name`, `mode`, `chunk_size`, `access`, `min_replicas`, `immutable`",
        ),
        (
            "replica = ['/a']\n",
            "v.toml:1: key `replica`: must be a list of tables; begin each one with [[replica]]",
        ),
    ]);
}

#[test]
fn an_unwritable_combination_is_refused_with_the_reason() {
    let copies = with("").replace("mode = 'shared'", "mode = 'copies'\naccess = 'rw'");
    let whole = with("[read]\npassthrough = 'whole-file'\n");
    let whole = whole.replace("mode = 'shared'", "mode = 'shared'\naccess = 'rw'");
    let forward = with("[write]\nlocks = 'forward'\n").replace("'shared'", "'copies'");
    for (text, expected) in [
        (
            copies,
            "v.toml:4: key `volume.access`: \"rw\" needs `volume.mode` = \"shared\": a change would \
             reach only one of the copies; use \"ro\"",
        ),
        (
            whole,
            "v.toml:4: key `volume.access`: \"rw\" and `read.passthrough` = \"whole-file\" exclude \
             each other: the kernel would read one replica while fanfs writes to another; change one of them",
        ),
        (
            forward,
            "v.toml:7: key `write.locks`: \"forward\" needs `volume.mode` = \"shared\": a lock on \
             one copy does not exclude users of another; use \"local\"",
        ),
        (
            with("[write]\nreplica = 'r9'\n"),
            "v.toml:7: key `write.replica`: \"r9\" is not the name of a replica; use `r1`",
        ),
        (
            with("[write]\ndeadline = '1ms'\n"),
            "v.toml:7: key `write.deadline`: 1ms is out of range; use 100ms to 1h",
        ),
        (
            with("[write]\nlocks = 'none'\n"),
            "v.toml:7: key `write.locks`: \"none\" is not valid; use \"forward\" or \"local\"",
        ),
    ] {
        assert_eq!(parse(&text).unwrap_err(), expected, "for:\n{text}");
    }
}

#[test]
fn an_immutable_volume_refuses_what_contradicts_it() {
    let immutable = |access: &str, more: &str| {
        let keys = format!("mode = 'shared'\nimmutable = true\n{access}");
        with(more).replace("mode = 'shared'", &keys)
    };
    assert!(parse(&immutable("", "")).unwrap().volume.immutable);
    assert_eq!(
        parse(&immutable("access = 'rw'", "")).unwrap_err(),
        "v.toml:4: key `volume.immutable`: excludes `volume.access` = \"rw\": fanfs itself would \
         change the volume; remove one of them"
    );
    assert_eq!(
        parse(&immutable("", "[fuse]\nattribute_ttl = '5s'\n")).unwrap_err(),
        "v.toml:9: key `fuse.attribute_ttl`: has no effect with `volume.immutable`: the kernel keeps \
         attributes for as long as it has memory; remove one of them"
    );
}

#[test]
fn invalid_volume_tables_are_refused() {
    let file = |key: &str| with("").replacen("[volume]", &format!("[volume]\n{key}"), 1);
    for (key, expected) in [
        (
            "access = 'write'",
            "v.toml:2: key `volume.access`: \"write\" is not valid; use \"ro\" or \"rw\"",
        ),
        (
            "chunk_size = '100MB'",
            "v.toml:2: key `volume.chunk_size`: 100MB is not a positive multiple of `read.segment_size` (1MiB); change one of them",
        ),
        (
            "chunk_size = '0B'",
            "v.toml:2: key `volume.chunk_size`: 0B is not a positive multiple of `read.segment_size` (1MiB); change one of them",
        ),
        (
            "chunk_size = 256",
            "v.toml:2: key `volume.chunk_size`: 256 has no unit; give one, such as \"1MiB\"",
        ),
        (
            "deadline = '1s'",
            "v.toml:2: key `volume.deadline` is not known; did you mean `deadline` in [read]?",
        ),
        (
            "replicas = 3",
            "v.toml:2: key `volume.replicas` is not known; did you mean `min_replicas`?",
        ),
        (
            "access = true",
            "v.toml:2: key `volume.access`: invalid type: boolean `true`, expected a string",
        ),
    ] {
        assert_eq!(parse(&file(key)).unwrap_err(), expected, "for {key}");
    }
}

#[test]
fn an_unknown_table_or_key_is_refused_with_the_likely_one() {
    refused_after_valid(&[
        ("[reed]\ncache = 'kernel'\n", "v.toml:6: table [reed] is not known; did you mean [read]?"),
        (
            "[[replicas]]\npath = '/b'\n",
            "v.toml:6: table [[replicas]] is not known; did you mean [[replica]]?",
        ),
        (
            "[network]\n",
            "v.toml:6: table [network] is not known; the tables are [volume], [[replica]], [read], [write], [memory], [fuse], [metrics], [log], [placement], [[affinity]]",
        ),
        (
            "[[raid]]\nlevel = 5\n",
            "v.toml:6: table [[raid]] is not known; the tables are [volume], [[replica]], [read], [write], [memory], [fuse], [metrics], [log], [placement], [[affinity]]",
        ),
        (
            "reed.x = 1\n",
            "v.toml:6: key `replica[1].reed` is not known; [[replica]] has the keys `path`, `address`, `version`, `connections`, `mount_port`, `name`, `node`, `aliases`, `weight`, `max_in_flight`, `max_rate`, `page_cache`, `require_mount`",
        ),
        (
            "[read]\nsegmnt_size = '1MiB'\n",
            "v.toml:7: key `read.segmnt_size` is not known; did you mean `segment_size`?",
        ),
        (
            "[read]\nbudget = '1GiB'\n",
            "v.toml:7: key `read.budget` is not known; did you mean `budget` in [memory]?",
        ),
        (
            "[read]\ncolour = 'red'\n",
            "v.toml:7: key `read.colour` is not known; [read] has the keys `segment_size`, `readahead_max`, `threads_per_replica`, `max_in_flight`, `deadline`, `deadline_all`, `attempt_deadline`, `compare`, `cache`, `passthrough`",
        ),
        ("wieght = 2\n", "v.toml:6: key `replica[1].wieght` is not known; did you mean `weight`?"),
        (
            "[read]\n\"se\\ngment\" = 1\n",
            "v.toml:7: key `read.\"se\\ngment\"` is not known; [read] has the keys `segment_size`, `readahead_max`, `threads_per_replica`, `max_in_flight`, `deadline`, `deadline_all`, `attempt_deadline`, `compare`, `cache`, `passthrough`",
        ),
    ]);
}

#[test]
fn invalid_replica_tables_are_refused() {
    refused_after_valid(&[
        ("weight = 0\n", "v.toml:6: key `replica[1].weight`: 0 is out of range; use 0.001 to 1000"),
        (
            "weight = nan\n",
            "v.toml:6: key `replica[1].weight`: NaN is out of range; use 0.001 to 1000",
        ),
        (
            "weight = 'fast'\n",
            "v.toml:6: key `replica[1].weight`: invalid type: string \"fast\", expected a number",
        ),
        (
            "max_rate = '100MiB'\n",
            "v.toml:6: key `replica[1].max_rate`: \"100MiB\" has an unknown unit `MiB`; use one of B/s, KB/s, MB/s, GB/s, TB/s, PB/s, KiB/s, MiB/s, GiB/s, TiB/s, PiB/s",
        ),
        (
            "max_rate = 100\n",
            "v.toml:6: key `replica[1].max_rate`: 100 has no unit; give one, such as \"100MiB/s\"",
        ),
        (
            "max_rate = '1KiB/s'\n",
            "v.toml:6: key `replica[1].max_rate`: 1KiB/s is too low; use at least 64KiB/s",
        ),
        (
            "max_in_flight = '64KiB'\n",
            "v.toml:6: key `replica[1].max_in_flight`: 64KiB is less than `read.segment_size` (1MiB); use at least 1MiB",
        ),
        (
            "name = 'a b'\n",
            "v.toml:6: key `replica[1].name`: \"a b\" is not a valid name; use 1 to 253 letters, digits, `.`, `_`, `-`, `:`",
        ),
        (
            "node = ''\n",
            "v.toml:6: key `replica[1].node`: \"\" is not a valid name; use 1 to 253 letters, digits, `.`, `_`, `-`, `:`",
        ),
        (
            "require_mount = 'no'\n",
            "v.toml:6: key `replica[1].require_mount`: invalid type: string \"no\", expected true or false, without quotes",
        ),
        (
            "[[replica]]\nname = 'b'\n",
            "v.toml:6: key `replica[2].path` is missing; set it to the directory where the replica is mounted, or set `address` to \"nfs://SERVER/EXPORT\"",
        ),
        (
            "[[replica]]\npath = 'mnt/b'\n",
            "v.toml:7: key `replica[2].path`: \"mnt/b\" is not absolute; start it with /",
        ),
        (
            "[[replica]]\npath = '/a/'\n",
            "v.toml:7: key `replica[2].path`: \"/a/\" is also the path of replica[1]; use a separate mount for each replica",
        ),
        (
            "[[replica]]\npath = '/b/../a'\n",
            "v.toml:7: key `replica[2].path`: \"/b/../a\" contains `..`; write the path without it",
        ),
        (
            "[[replica]]\npath = \"/b\\u0000\"\n",
            "v.toml:7: key `replica[2].path`: \"/b\\0\" contains a NUL character; remove it",
        ),
        (
            "[[replica]]\npath = ''\n",
            "v.toml:7: key `replica[2].path`: \"\" is not absolute; start it with /",
        ),
        (
            "name = 'r2'\n[[replica]]\npath = '/b'\n",
            "v.toml:7: key `replica[2].name`: \"r2\", the default, is also the name of replica[1]; use a unique name for each replica",
        ),
        (
            "name = 'x'\n[[replica]]\nname = 'x'\npath = '/b'\n",
            "v.toml:8: key `replica[2].name`: \"x\" is also the name of replica[1]; use a unique name for each replica",
        ),
        (
            "node = 'n'\n[[replica]]\nnode = 'n'\npath = '/b'\n",
            "v.toml:7: key `replica[2].name`: \"n\", the default, is also the name of replica[1]; use a unique name for each replica",
        ),
        (
            "[[replica]]\npath = 5\n",
            "v.toml:7: key `replica[2].path`: invalid type: integer `5`, expected a string",
        ),
    ]);
    let many: String = (0..64).map(|n| format!("[[replica]]\npath = '/r{n}'\n")).collect();
    let error = parse(&with(&many)).unwrap_err();
    assert_eq!(error, "v.toml:132: key `replica[65]`: the file has 65 replicas; use at most 64");
}

#[test]
fn keys_that_do_not_suit_an_export_are_refused() {
    refused_after_valid(&[
        (
            "address = 'nfs://gw/x'\n",
            "v.toml:6: key `replica[1].address`: excludes `path`: a replica is an NFS server's export or a directory; remove one of them",
        ),
        (
            "connections = 2\n",
            "v.toml:6: key `replica[1].connections`: belongs to `address`, not to `path`; remove it",
        ),
        (
            "[[replica]]\naddress = 'gw:/x'\n",
            "v.toml:7: key `replica[2].address`: \"gw:/x\" is not valid: it does not begin with nfs://; write nfs://SERVER/EXPORT",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\nconnections = 17\n",
            "v.toml:8: key `replica[2].connections`: 17 is out of range; use 1 to 16",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\nmount_port = 0\n",
            "v.toml:8: key `replica[2].mount_port`: 0 is out of range; use 1 to 65535",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\nversion = '4'\n",
            "v.toml:8: key `replica[2].version`: \"4\" is not valid; use \"3\" or \"4.1\" (did you mean \"4.1\"?)",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\nversion = '4.1'\nmount_port = 20048\n",
            "v.toml:9: key `replica[2].mount_port`: belongs to NFSv3, not to `version = \"4.1\"`; remove it",
        ),
        (
            "version = '3'\n",
            "v.toml:6: key `replica[1].version`: belongs to `address`, not to `path`; remove it",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\npage_cache = 'use'\n",
            "v.toml:8: key `replica[2].page_cache`: has no effect with `address`: fanfs reads from the server without a mount; remove it",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\nname = 'b'\n[[replica]]\naddress = 'nfs://gw//x/'\n",
            "v.toml:10: key `replica[3].address`: \"nfs://gw/x\" is also the address of replica[2]; use another server for each replica",
        ),
        (
            "[[replica]]\naddress = 'nfs://gw/x'\n[read]\npassthrough = 'whole-file'\n",
            "v.toml:9: key `read.passthrough`: \"whole-file\" needs replicas with `path`, and replica[2] has `address`: the kernel cannot read it; change one of them",
        ),
    ]);
    refused(&[
        (
            "[volume]\nname = 'v'\nmode = 'shared'\naccess = 'rw'\n[[replica]]\naddress = 'nfs://gw/x'\n",
            "v.toml:4: key `volume.access`: \"rw\" needs replicas with `path`, and replica[1] has `address`: fanfs only reads from it; use \"ro\", or mount the export and set its `path`",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\naddress = 'nfs://gw/x'\n[write]\nlocks = 'forward'\n",
            "v.toml:7: key `write.locks`: \"forward\" needs a write replica with `path`: fanfs does not lock files on an `address`; use \"local\"",
        ),
        (
            "[volume]\nname = 'v'\nmode = 'shared'\n[[replica]]\naddress = 'nfs://gw/x'\n[placement]\nprovider = 'lustre'\ncommand = ['lfs', '{local:sh}']\n",
            "v.toml:8: key `placement.command`: has `{local}`, the file below a replica's `path`, and all replicas have `address`; use `{path}`, or mount one of the replicas",
        ),
    ]);
}

#[test]
fn wrong_values_in_other_tables_are_refused() {
    refused_after_valid(&[
        (
            "[read]\nsegment_size = 1048576\n",
            "v.toml:7: key `read.segment_size`: 1048576 has no unit; give one, such as \"1MiB\"",
        ),
        (
            "[read]\nsegment_size = '1048576'\n",
            "v.toml:7: key `read.segment_size`: \"1048576\" has no unit; give one, such as \"1MiB\"",
        ),
        (
            "[read]\nsegment_size = '1M'\n",
            "v.toml:7: key `read.segment_size`: \"1M\" has an unknown unit `M`; use one of B, KB, MB, GB, TB, PB (powers of 1000), KiB, MiB, GiB, TiB, PiB (of 1024)",
        ),
        (
            "[read]\nsegment_size = '3MiB'\n",
            "v.toml:7: key `read.segment_size`: 3MiB is not a power of two; use 2MiB or 4MiB",
        ),
        (
            "[read]\nsegment_size = '32MiB'\n",
            "v.toml:7: key `read.segment_size`: 32MiB is out of range; use 64KiB to 16MiB",
        ),
        (
            "[read]\nsegment_size = true\n",
            "v.toml:7: key `read.segment_size`: invalid type: boolean `true`, expected a size in quotes, such as \"1MiB\"",
        ),
        (
            "[read]\nsegment_size = 99999999999999999999\n",
            "v.toml:7: key `read.segment_size`: invalid type: integer `99999999999999999999`, expected a size in quotes, such as \"1MiB\"",
        ),
        (
            "[read]\ndeadline = 30\n",
            "v.toml:7: key `read.deadline`: 30 has no unit; give one, such as \"30s\"",
        ),
        (
            "[read]\ndeadline = '30 parsecs'\n",
            "v.toml:7: key `read.deadline`: \"30 parsecs\" has an unknown unit `parsecs`; use one of us, ms, s, min, h",
        ),
        (
            "[read]\ndeadline = '2h'\n",
            "v.toml:7: key `read.deadline`: 2h is out of range; use 100ms to 1h",
        ),
        (
            "[read]\ndeadline_all = '2h'\n",
            "v.toml:7: key `read.deadline_all`: 2h is out of range; use 100ms to 1h",
        ),
        (
            "[read]\ndeadline_all = '20s'\n",
            "v.toml:7: key `read.deadline_all`: 20s is shorter than `read.deadline` (30s); use 30s to 1h",
        ),
        (
            "[read]\ncompare = '1'\n",
            "v.toml:7: key `read.compare`: \"1\" has no unit; give one, such as \"1%\"",
        ),
        (
            "[read]\ncompare = '101%'\n",
            "v.toml:7: key `read.compare`: \"101%\" is too large; use at most 100%",
        ),
        (
            "[read]\nattempt_deadline = '1ms'\n",
            "v.toml:7: key `read.attempt_deadline`: 1ms is too short; use 50ms to `read.deadline`",
        ),
        (
            "[read]\nattempt_deadline = '1min'\n",
            "v.toml:7: key `read.attempt_deadline`: 1m is longer than `read.deadline` (30s); change one of them",
        ),
        (
            "[read]\ndeadline = '2s'\n",
            "v.toml:7: key `read.attempt_deadline`: 5s, the default, is longer than `read.deadline` (2s); change one of them",
        ),
        (
            "[read]\nthreads_per_replica = 1\n",
            "v.toml:7: key `read.threads_per_replica`: 1 is out of range; use 2 to 256",
        ),
        (
            "[read]\nthreads_per_replica = -1\n",
            "v.toml:7: key `read.threads_per_replica`: -1 is out of range; use 2 to 256",
        ),
        (
            "[read]\nthreads_per_replica = '8'\n",
            "v.toml:7: key `read.threads_per_replica`: invalid type: string \"8\", expected a whole number",
        ),
        (
            "[read]\ncache = 'kernle'\n",
            "v.toml:7: key `read.cache`: \"kernle\" is not valid; use \"auto\" or \"kernel\" or \"direct\" (did you mean \"kernel\"?)",
        ),
        (
            "[read]\ncache = 'none'\n",
            "v.toml:7: key `read.cache`: \"none\" is not valid; use \"auto\" or \"kernel\" or \"direct\"",
        ),
        (
            "[read]\npassthrough = 'on'\n",
            "v.toml:7: key `read.passthrough`: \"on\" is not valid; use \"off\" or \"whole-file\"",
        ),
        (
            "[read.cache]\nx = 1\n",
            "v.toml:6: key `read.cache`: invalid type: table, expected a string",
        ),
        (
            "[read]\nreadahead_max = '64KiB'\n",
            "v.toml:7: key `read.readahead_max`: 64KiB is less than `read.segment_size` (1MiB); use at least 1MiB, or write \"0B\" to turn readahead off",
        ),
        (
            "[read]\nmax_in_flight = '512KiB'\n",
            "v.toml:7: key `read.max_in_flight`: 512KiB is less than `read.segment_size` (1MiB); use at least 1MiB",
        ),
        (
            "[read]\nsegment_size = '16MiB'\nmax_in_flight = '16MiB'\n[memory]\nbudget = '255MiB'\n",
            "v.toml:10: key `memory.budget`: 255MiB is less than 16 times `read.segment_size` (16MiB); use at least 256MiB",
        ),
        (
            "[memory]\nbudget = '8MiB'\n",
            "v.toml:7: key `memory.budget`: 8MiB is less than 16 times `read.segment_size` (1MiB); use at least 16MiB",
        ),
        ("[fuse]\nthreads = 65\n", "v.toml:7: key `fuse.threads`: 65 is out of range; use 1 to 64"),
        (
            "[fuse]\nallow_other = 'yes'\n",
            "v.toml:7: key `fuse.allow_other`: invalid type: string \"yes\", expected true or false, without quotes",
        ),
        (
            "[fuse]\nkernel_readahead = '65MiB'\n",
            "v.toml:7: key `fuse.kernel_readahead`: 65MiB is out of range; use 0B to 64MiB",
        ),
        (
            "[fuse]\nmax_background = 0\n",
            "v.toml:7: key `fuse.max_background`: 0 is out of range; use 1 to 65535",
        ),
        (
            "[fuse]\nattribute_ttl = '2h'\n",
            "v.toml:7: key `fuse.attribute_ttl`: 2h is out of range; use 0s to 1h",
        ),
    ]);
}

#[test]
fn metrics_and_log_targets_are_checked() {
    refused_after_valid(&[
        (
            "[metrics]\nlisten = 'localhost:19469'\n",
            "v.toml:7: key `metrics.listen`: \"localhost:19469\" is not an address; use an IP address and a port, such as \"127.0.0.1:19469\" or \"[::1]:19469\", only a port (1 to 65535), or \"unix:/PATH\"",
        ),
        (
            "[metrics]\nlisten = '127.0.0.1:0'\n",
            "v.toml:7: key `metrics.listen`: \"127.0.0.1:0\" is not an address; use an IP address and a port, such as \"127.0.0.1:19469\" or \"[::1]:19469\", only a port (1 to 65535), or \"unix:/PATH\"",
        ),
        (
            "[metrics]\nlisten = 'unix:run/v.metrics'\n",
            "v.toml:7: key `metrics.listen`: \"run/v.metrics\" is not absolute; start it with /",
        ),
        (
            "[metrics]\nlisten = 'unix:/run/'\n",
            "v.toml:7: key `metrics.listen`: \"/run/\" is not a socket's path; use at most 100 bytes, without a / at the end",
        ),
        (
            "[metrics]\ntextfile = '/run/v.txt'\n",
            "v.toml:7: key `metrics.textfile`: \"/run/v.txt\" does not end in .prom; rename it, because node_exporter reads only such files",
        ),
        (
            "[metrics]\ninterval = '1min'\n",
            "v.toml:7: key `metrics.interval`: has no effect without `metrics.textfile`; add `textfile`, or remove `interval`",
        ),
        (
            "[metrics]\ntextfile = '/v.prom'\ninterval = '2h'\n",
            "v.toml:8: key `metrics.interval`: 2h is out of range; use 1s to 1h",
        ),
        (
            "[log]\nlevel = 'debgu'\n",
            "v.toml:7: key `log.level`: \"debgu\" is not a level; did you mean \"debug\"?",
        ),
        (
            "[log]\nlevel = 'info,fanfs::read'\n",
            "v.toml:7: key `log.level`: \"fanfs::read\" is not a level; use off, error, warn, info, debug, trace, or TARGET=LEVEL",
        ),
        (
            "[log]\nformat = 'xml'\n",
            "v.toml:7: key `log.format`: \"xml\" is not valid; use \"text\" or \"json\" or \"journald\"",
        ),
        ("[log]\nrate = -1\n", "v.toml:7: key `log.rate`: -1 is out of range; use 0 to 1000000"),
        (
            "[log]\nmax_size = '1KiB'\n",
            "v.toml:7: key `log.max_size`: 1KiB is out of range; use 16KiB to 1GiB",
        ),
        (
            "[log]\nlisten = 'x'\n",
            "v.toml:7: key `log.listen` is not known; did you mean `listen` in [metrics]?",
        ),
    ]);
}
