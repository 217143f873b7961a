#compdef fanfs

autoload -U is-at-least

_fanfs() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_fanfs_commands" \
"*::: :->fanfs" \
&& ret=0
    case $state in
    (fanfs)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:fanfs-command-$line[1]:"
        case $line[1] in
            (init)
_arguments "${_arguments_options[@]}" : \
'-o+[Write to FILE instead of standard output]:FILE:_files' \
'--output=[Write to FILE instead of standard output]:FILE:_files' \
'--name=[The volume'\''s name \[default\: the name of FILE, or else of the exported directory\]]:NAME:_default' \
'--mode=[How the replicas relate \[default\: guessed from the mounts\]]:MODE:((shared\:"One file system, seen through several mounts"
copies\:"Independent trees with the same content"))' \
'--force[Overwrite FILE]' \
'--json[Print JSON\: the guesses, their evidence and the text of the file]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::mounts -- Directories where the same data is mounted, or nfs\://SERVER/EXPORT, where it is \[default\: list the network mounts\]:_files -/' \
&& ret=0
;;
(mount)
_arguments "${_arguments_options[@]}" : \
'*-o+[Mount options, comma-separated, as in /etc/fstab\: allow_other, noexec, suid, dev, keeper, log=FILE; mount(8)'\''s own, such as ro, noauto, _netdev and x-systemd.*, are accepted]:OPTIONS:_default' \
'--log=[Log to FILE \[default\: a file in the run-time directory, named after MOUNTPOINT\]]:FILE:_files' \
'-f[Stay in the foreground, and log to standard error; SIGTERM and SIGINT unmount]' \
'--foreground[Stay in the foreground, and log to standard error; SIGTERM and SIGINT unmount]' \
'--ready[Report on standard output whether the start succeeded, then detach]' \
'--sloppy[Ignore unknown mount options]' \
'--kept[A keeper started this process, and sends its instructions on standard input]' \
'--successor[A daemon started this process, and hands its mount over on standard input]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, where it is mounted, or NFS servers with one export\: nfs\://SERVER,SERVER/EXPORT:_files' \
':mount_point -- The directory to mount on; the mount hides its contents:_files -/' \
&& ret=0
;;
(umount)
_arguments "${_arguments_options[@]}" : \
'-l[Detach the mount at once; open files stay readable until they are closed]' \
'--lazy[Detach the mount at once; open files stay readable until they are closed]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(unmount)
_arguments "${_arguments_options[@]}" : \
'-l[Detach the mount at once; open files stay readable until they are closed]' \
'--lazy[Detach the mount at once; open files stay readable until they are closed]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
'::file -- The new configuration, a name or a file \[default\: the file of the mounted volume\]:_files' \
&& ret=0
;;
(upgrade)
_arguments "${_arguments_options[@]}" : \
'--program=[The fanfs program to switch to \[default\: this one\]]:FILE:_files' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(check)
_arguments "${_arguments_options[@]}" : \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
'--file=[The file to read\: relative to the replicas'\'' roots, or a path below the volume'\''s mount point or a replica \[default\: the one with the most data among those found quickly\]]:FILE:_files' \
'--seconds=[The duration of each step of the measurement, seconds]:NUMBER:_default' \
'--deadline=[The longest wait for a replica'\''s answer \[default\: 5s\]]:TIME:_default' \
'--measure[Also read the replicas, each alone and then all at once]' \
'--write[Create and remove a file on each replica, to read its server'\''s clock]' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
'*::what -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted; or the replicas'\'' directories; or servers with one export, nfs\://SERVER,SERVER/EXPORT:_files' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--json[Print JSON\: one object if VOLUME is named, else an array]' \
'(--json)--check[For monitoring\: print one line and fail if a replica is out of service, a keeper has died or a daemon does not answer; print nothing if all is well]' \
'-h[Print help]' \
'--help[Print help]' \
'::volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted \[default\: all of this user'\''s volumes\]:_files' \
&& ret=0
;;
(top)
_arguments "${_arguments_options[@]}" : \
'-d+[Refresh interval, 200ms to 1min; rates are means over this time]:TIME:_default' \
'--interval=[Refresh interval, 200ms to 1min; rates are means over this time]:TIME:_default' \
'--once[Print one interval as text and exit; this is the default if standard output is not a terminal]' \
'--json[Print one interval as JSON and exit]' \
'-h[Print help]' \
'--help[Print help]' \
'::volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted \[default\: this user'\''s volumes; the key v shows the next one\]:_files' \
&& ret=0
;;
(explain)
_arguments "${_arguments_options[@]}" : \
'--volume=[Explain a file of this volume, which need not be mounted; bandwidths are assumed then]:VOLUME:_files' \
'--json[Print JSON, with every chunk]' \
'-h[Print help]' \
'--help[Print help]' \
':file -- A file on a mounted volume; with --volume its path in the volume:_files' \
&& ret=0
;;
(trace)
_arguments "${_arguments_options[@]}" : \
'-o+[Record to this new file, with mode 0600, instead of showing the reads\: one line of JSON for each read and each segment; \`fanfs simulate --trace\` replays it]:FILE:_files' \
'--output=[Record to this new file, with mode 0600, instead of showing the reads\: one line of JSON for each read and each segment; \`fanfs simulate --trace\` replays it]:FILE:_files' \
'--duration=[Stop after this time \[default\: until Ctrl-C\]]:TIME:_default' \
'--reads=[Stop after this number of reads]:COUNT:_default' \
'--force[Overwrite FILE if it exists]' \
'--json[Print JSON, in the format of a recording]' \
'--segments[Also show segments, including readahead and failed attempts]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(verify)
_arguments "${_arguments_options[@]}" : \
'(--full)--sample=[The share of each file'\''s blocks to compare, besides the first and the last]:SHARE:_default' \
'--seed=[Selects the blocks of the sample; the same seed selects the same blocks \[default\: random\]]:NUMBER:_default' \
'--state=[Save the progress in FILE, and resume from it]:FILE:_files' \
'--rate=[Limit the rate of reading from all replicas together]:RATE:_default' \
'--jobs=[Number of files to compare at a time, and of blocks to read from each replica at a time]:NUMBER:_default' \
'--deadline=[The longest wait for one call on a replica \[default\: the volume'\''s \`attempt_deadline\`, and \`deadline\` to list a directory\]]:TIME:_default' \
'*--ignore=[Differences to ignore\: mtime, ctime, inode, mode, owner]:KIND,...:_default' \
'--full[Compare every byte]' \
'--xattrs[Also compare the extended attributes \`user.*\`]' \
'--json[Print one JSON object, at the end]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
'::path -- The file or directory to compare\: relative to the volume'\''s root, or a path below its mount point or a replica \[default\: everything\]:_files' \
&& ret=0
;;
(bench)
_arguments "${_arguments_options[@]}" : \
'(--make)--file=[The file to read\: relative to the volume'\''s root, or a path below its mount point or a replica \[default\: the one with the most data among the first 20,000 entries\]]:FILE:_files' \
'--make=[Create a file of this size on the write replica, and remove it at the end]:SIZE:_default' \
'--seconds=[The longest duration of a pass, seconds \[default\: 3\]]:SECONDS:_default' \
'--rounds=[The number of rounds; figures are medians of them \[default\: 3\]]:NUMBER:_default' \
'--block=[The request size of a sequential reader]:SIZE:_default' \
'--random-block=[The request size of a random reader]:SIZE:_default' \
'--readers=[The number of readers of the random and the parallel load \[default\: 4, or one for each replica if there are more\]]:NUMBER:_default' \
'--seed=[Selects the random blocks]:NUMBER:_default' \
'--deadline=[The longest wait for one call on a replica]:TIME:_default' \
'--report=[Write an HTML report with plots]:FILE.html:_files' \
'--fio=[Write a fio job for each pass, and a script that runs all of them]:DIR:_files' \
'--quick[One round of passes of 1 s\: about 20 seconds for three replicas]' \
'--run-fio[Also run these fio jobs, and show their results next to fanfs'\''s own]' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(simulate)
_arguments "${_arguments_options[@]}" : \
'--trace=[Replay the readers of a recording of \`fanfs trace --output\`, instead of the scenario'\''s]:FILE:_files' \
'--seed=[Use this seed instead of the scenario'\''s]:SEED:_default' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
':scenario -- The scenario file; config/scenarios/ has examples, docs/PLACEMENT.md describes the keys:_files' \
&& ret=0
;;
(demo)
_arguments "${_arguments_options[@]}" : \
'--replicas=[How many replicas to create]:REPLICAS:_default' \
'--rate=[The bandwidth of each replica]:RATE:_default' \
'--size=[The size of the file]:SIZE:_default' \
'--dir=[The directory for the file and the mount point during the demo \[default\: \$TMPDIR or /tmp\]]:DIR:_files' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(generate)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
":: :_fanfs__subcmd__generate_commands" \
"*::: :->generate" \
&& ret=0

    case $state in
    (generate)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:fanfs-generate-command-$line[1]:"
        case $line[1] in
            (man)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':dir -- The directory; created if it does not exist:_files -/' \
&& ret=0
;;
(completions)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':shell -- The shell:(bash zsh fish)' \
&& ret=0
;;
(schema)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(units)
_arguments "${_arguments_options[@]}" : \
'-o+[Mount options, comma-separated]:OPTIONS:_default' \
'--output=[Write the units into DIR instead of standard output]:DIR:_files -/' \
'--force[Overwrite existing units that differ]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
':mount_point -- The volume'\''s future mount point:_files -/' \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
}

(( $+functions[_fanfs_commands] )) ||
_fanfs_commands() {
    local commands; commands=(
'init:Write the configuration of a volume for existing mounts, or list such mounts' \
'mount:Mount a volume, and return when the mount answers' \
'umount:Unmount a volume, and wait for its daemon to end' \
'unmount:Unmount a volume, and wait for its daemon to end' \
'reload:Apply a changed configuration to a mounted volume; open files stay open' \
'upgrade:Switch a mounted volume to another fanfs program; open files stay open' \
'check:Check a volume'\''s configuration and its replicas' \
'doctor:Find what slows reads down, the most costly problem first, and how to fix it' \
'status:Show what mounted volumes and their replicas are doing' \
'top:Watch the replicas, files and readers of a mounted volume' \
'explain:Show where a file'\''s chunks are, what rate to expect, and how to improve it' \
'trace:Show each read\: its segments, the replicas that served them, and its latency' \
'verify:Compare a volume'\''s replicas with each other, and list the differences' \
'bench:Measure a volume'\''s replicas alone, all at once, and through fanfs' \
'simulate:Simulate a cluster and its readers, and compare fanfs with simpler policies' \
'demo:Create rate-limited replicas, and read a file through 1, 2 and all of them' \
'generate:Write man pages, shell completions, the configuration'\''s schema, systemd units' \
    )
    _describe -t commands 'fanfs commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__bench_commands] )) ||
_fanfs__subcmd__bench_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs bench commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__check_commands] )) ||
_fanfs__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs check commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__demo_commands] )) ||
_fanfs__subcmd__demo_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs demo commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__doctor_commands] )) ||
_fanfs__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs doctor commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__explain_commands] )) ||
_fanfs__subcmd__explain_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs explain commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__generate_commands] )) ||
_fanfs__subcmd__generate_commands() {
    local commands; commands=(
'man:Write the man pages into DIR/man1, DIR/man5 and DIR/man8' \
'completions:Print the completions for a shell' \
'schema:Print the JSON schema of a volume'\''s configuration' \
'units:Print a .mount and an .automount unit for systemd, or write them into a directory' \
    )
    _describe -t commands 'fanfs generate commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__generate__subcmd__completions_commands] )) ||
_fanfs__subcmd__generate__subcmd__completions_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs generate completions commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__generate__subcmd__man_commands] )) ||
_fanfs__subcmd__generate__subcmd__man_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs generate man commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__generate__subcmd__schema_commands] )) ||
_fanfs__subcmd__generate__subcmd__schema_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs generate schema commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__generate__subcmd__units_commands] )) ||
_fanfs__subcmd__generate__subcmd__units_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs generate units commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__init_commands] )) ||
_fanfs__subcmd__init_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs init commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__mount_commands] )) ||
_fanfs__subcmd__mount_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs mount commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__reload_commands] )) ||
_fanfs__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs reload commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__simulate_commands] )) ||
_fanfs__subcmd__simulate_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs simulate commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__status_commands] )) ||
_fanfs__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs status commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__top_commands] )) ||
_fanfs__subcmd__top_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs top commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__trace_commands] )) ||
_fanfs__subcmd__trace_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs trace commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__umount_commands] )) ||
_fanfs__subcmd__umount_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs umount commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__upgrade_commands] )) ||
_fanfs__subcmd__upgrade_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs upgrade commands' commands "$@"
}
(( $+functions[_fanfs__subcmd__verify_commands] )) ||
_fanfs__subcmd__verify_commands() {
    local commands; commands=()
    _describe -t commands 'fanfs verify commands' commands "$@"
}

if [ "$funcstack[1]" = "_fanfs" ]; then
    _fanfs "$@"
else
    compdef _fanfs fanfs
fi
