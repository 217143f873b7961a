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
'--name=[The volume'\''s name \[default\: that of FILE, or of what is exported\]]:NAME:_default' \
'--mode=[How the replicas relate \[default\: by what is seen\]]:MODE:((shared\:"One file system, seen through several mounts"
copies\:"Independent trees with the same content"))' \
'--force[Overwrite FILE]' \
'--json[Print JSON\: what was seen and guessed, and the file'\''s text]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::mounts -- Directories where the same data is mounted \[default\: list the network mounts\]:_files -/' \
&& ret=0
;;
(mount)
_arguments "${_arguments_options[@]}" : \
'*-o+[Mount options, comma-separated, as in /etc/fstab\: allow_other, noexec, suid, dev, keeper, log=FILE; ro, noauto, _netdev, x-systemd.* and other standard ones are accepted]:OPTIONS:_default' \
'--log=[Log to this file \[default\: MOUNTPOINT'\''s name with .log in the run-time directory\]]:FILE:_files' \
'-f[Stay in the foreground and log to standard error; SIGTERM and SIGINT unmount]' \
'--foreground[Stay in the foreground and log to standard error; SIGTERM and SIGINT unmount]' \
'--ready[Say on standard output how starting went, then detach]' \
'--sloppy[Ignore options that are not known]' \
'--kept[Started by a keeper, which says on standard input what to do]' \
'--successor[Started by a daemon, which hands its mount over by standard input]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
':mount_point -- The directory to mount it on; what is in it is hidden meanwhile:_files -/' \
&& ret=0
;;
(umount)
_arguments "${_arguments_options[@]}" : \
'-l[Detach at once, also while files are open; they stay readable until they are closed]' \
'--lazy[Detach at once, also while files are open; they stay readable until they are closed]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(unmount)
_arguments "${_arguments_options[@]}" : \
'-l[Detach at once, also while files are open; they stay readable until they are closed]' \
'--lazy[Detach at once, also while files are open; they stay readable until they are closed]' \
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
'::file -- Its configuration from now on, as VOLUME \[default\: the file that it was mounted with\]:_files' \
&& ret=0
;;
(upgrade)
_arguments "${_arguments_options[@]}" : \
'--program=[The program that is to serve it \[default\: this one\]]:FILE:_files' \
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
'--file=[The file to read, from the replicas'\'' roots or below the volume'\''s mount point \[default\: the one with the most data that is found soon\]]:FILE:_files' \
'--seconds=[How long each step of the measurement takes, seconds]:NUMBER:_default' \
'--deadline=[How long a replica may take to answer \[default\: 5s\]]:TIME:_default' \
'--measure[Read the replicas, each alone and all at once]' \
'--write[Make a file on each replica, and take it away, to see its server'\''s clock]' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
'*::what -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted; or the directories of replicas:_files' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--json[Print JSON\: one object with VOLUME, else an array]' \
'(--json)--check[For monitoring\: print one line and fail where a replica is out of service, a keeper has died or a daemon does not answer; print nothing where all is well]' \
'-h[Print help]' \
'--help[Print help]' \
'::volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted \[default\: all of this user'\''s volumes\]:_files' \
&& ret=0
;;
(top)
_arguments "${_arguments_options[@]}" : \
'-d+[How often to look; rates are means over this time]:TIME:_default' \
'--interval=[How often to look; rates are means over this time]:TIME:_default' \
'--once[Print it once, as text, after one interval; so it is where standard output is no terminal]' \
'--json[Print it once, as JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'::volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted \[default\: this user'\''s volumes, one after the other by the key v\]:_files' \
&& ret=0
;;
(explain)
_arguments "${_arguments_options[@]}" : \
'--volume=[Ask for a volume that is not mounted; rates are assumed then]:VOLUME:_files' \
'--json[Print JSON, with every chunk]' \
'-h[Print help]' \
'--help[Print help]' \
':file -- A file on a mounted volume; with --volume its path in the volume:_files' \
&& ret=0
;;
(trace)
_arguments "${_arguments_options[@]}" : \
'-o+[Record to this new file, which is its owner'\''s alone, one line of JSON for each read and each segment, instead of showing them; \`fanfs simulate --trace\` replays it]:FILE:_files' \
'--output=[Record to this new file, which is its owner'\''s alone, one line of JSON for each read and each segment, instead of showing them; \`fanfs simulate --trace\` replays it]:FILE:_files' \
'--duration=[End after this time \[default\: until Ctrl-C\]]:TIME:_default' \
'--reads=[End after so many reads]:COUNT:_default' \
'--force[Overwrite FILE]' \
'--json[Print JSON, as it is recorded]' \
'--segments[Show segments as well, those read ahead and those that failed among them]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(verify)
_arguments "${_arguments_options[@]}" : \
'(--full)--sample=[The share of each file'\''s blocks to compare besides the first and the last]:SHARE:_default' \
'--seed=[Which blocks are looked at; the same number, the same blocks \[default\: at random\]]:NUMBER:_default' \
'--state=[Keep in FILE how far it has come, and go on from there]:FILE:_files' \
'--rate=[Most bytes a second to read, of all replicas together]:RATE:_default' \
'--jobs=[Files to compare at a time, and blocks to read at a time from each replica]:NUMBER:_default' \
'--deadline=[How long one call on a replica may take \[default\: the volume'\''s \`attempt_deadline\`; to list a directory, \`deadline\`\]]:TIME:_default' \
'*--ignore=[Differences that are none\: mtime, ctime, inode, mode, owner]:KIND,...:_default' \
'--full[Compare every byte]' \
'--xattrs[Compare extended attributes \`user.*\` as well]' \
'--json[Print one JSON object, at the end]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
'::path -- A file or directory, from the volume'\''s root, or below its mount point or a replica'\''s path \[default\: everything\]:_files' \
&& ret=0
;;
(bench)
_arguments "${_arguments_options[@]}" : \
'(--make)--file=[The file to read, from the volume'\''s root, or below its mount point or a replica'\''s path \[default\: the one with the most data among the first 20,000 entries\]]:FILE:_files' \
'--make=[Make a file of this size on the write replica, and remove it afterwards]:SIZE:_default' \
'--seconds=[The longest that one pass reads \[default\: 3s\]]:SECONDS:_default' \
'--rounds=[How often each pass is done; figures are medians \[default\: 3\]]:NUMBER:_default' \
'--block=[What a sequential reader asks for at a time]:SIZE:_default' \
'--random-block=[What a random reader asks for at a time]:SIZE:_default' \
'--readers=[Readers of the random and the parallel load \[default\: 4, or one for each replica\]]:NUMBER:_default' \
'--seed=[Which random blocks are read]:NUMBER:_default' \
'--deadline=[How long a replica may take to answer one call]:TIME:_default' \
'--report=[Write a page with plots]:FILE.html:_files' \
'--fio=[Write each pass as a job for fio, and a script that runs them]:DIR:_files' \
'--quick[About 20 seconds for three replicas\: one round of passes of 1 s]' \
'--run-fio[Run these jobs as well, and show what fio measures beside it]' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
&& ret=0
;;
(simulate)
_arguments "${_arguments_options[@]}" : \
'--trace=[Have the readers of a recording read instead of the scenario'\''s\: what \`fanfs trace --output\` wrote]:FILE:_files' \
'--seed=[Use this seed instead of the scenario'\''s]:SEED:_default' \
'--json[Print JSON instead of a table]' \
'-h[Print help]' \
'--help[Print help]' \
':scenario -- The scenario; config/scenarios/ has examples, docs/PLACEMENT.md the keys:_files' \
&& ret=0
;;
(demo)
_arguments "${_arguments_options[@]}" : \
'--replicas=[How many replicas to make]:REPLICAS:_default' \
'--rate=[What each replica delivers]:RATE:_default' \
'--size=[The size of the file that is read]:SIZE:_default' \
'--dir=[Where to put the file and the mount point, for the time of the demo \[default\: \$TMPDIR or /tmp\]]:DIR:_files' \
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
':dir -- A directory, which is made:_files -/' \
&& ret=0
;;
(completions)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
':shell -- Which:(bash zsh fish)' \
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
'--output=[Write the files into this directory]:DIR:_files -/' \
'--force[Overwrite units that are there with another content]' \
'-h[Print help]' \
'--help[Print help]' \
':volume -- The volume\: its name in /etc/fanfs, its configuration file, or where it is mounted:_files' \
':mount_point -- Where it is to be mounted:_files -/' \
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
'init:Write a volume'\''s configuration for mounts that there are, or list such mounts' \
'mount:Mount a volume; returns when the mount answers' \
'umount:Unmount a volume and wait for its daemon to end' \
'unmount:Unmount a volume and wait for its daemon to end' \
'reload:Go on with a mounted volume'\''s configuration as it is now; nothing that is open is lost' \
'upgrade:Have a mounted volume served by this program from now on; nothing that is open is lost' \
'check:Validate a volume'\''s configuration and look at its replicas' \
'doctor:Say what holds reads back, in the order of what it costs, and what mends it' \
'status:Show what mounted volumes and their replicas are doing' \
'top:Watch a mounted volume at work\: replicas, files, readers' \
'explain:Show where a file'\''s chunks are, what rate to expect, and what would improve it' \
'trace:Show what becomes of each read\: its segments, their replicas, how long it took' \
'verify:Compare a volume'\''s replicas with each other, and list what differs' \
'bench:Measure what the replicas give, alone, all at once and through fanfs' \
'simulate:Simulate a cluster and its readers, and compare fanfs with simpler policies' \
'demo:Make rate-limited replicas, mount them and read one file through one, two and all of them' \
'generate:Write manual pages, shell completions, the volume file'\''s schema, or units for systemd' \
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
'man:Write the manual pages into DIR/man1, DIR/man5 and DIR/man8' \
'completions:Print the completions of a shell' \
'schema:Print the JSON schema of a volume file' \
'units:Print a .mount and an .automount unit of systemd, or write them into a directory' \
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
