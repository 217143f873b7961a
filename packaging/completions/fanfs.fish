# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_fanfs_global_optspecs
    string join \n h/help V/version
end

function __fish_fanfs_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_fanfs_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_fanfs_using_subcommand
    set -l cmd (__fish_fanfs_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c fanfs -n "__fish_fanfs_needs_command" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_needs_command" -s V -l version -d 'Print version'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "init" -d 'Write the configuration of a volume for existing mounts, or list such mounts'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "mount" -d 'Mount a volume, and return when the mount answers'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "umount" -d 'Unmount a volume, and wait for its daemon to end'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "unmount" -d 'Unmount a volume, and wait for its daemon to end'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "reload" -d 'Apply a changed configuration to a mounted volume; open files stay open'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "upgrade" -d 'Switch a mounted volume to another fanfs program; open files stay open'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "check" -d 'Check a volume\'s configuration and its replicas'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "doctor" -d 'Find what slows reads down, the most costly problem first, and how to fix it'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "status" -d 'Show what mounted volumes and their replicas are doing'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "top" -d 'Watch the replicas, files and readers of a mounted volume'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "explain" -d 'Show where a file\'s chunks are, what rate to expect, and how to improve it'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "trace" -d 'Show each read: its segments, the replicas that served them, and its latency'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "verify" -d 'Compare a volume\'s replicas with each other, and list the differences'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "bench" -d 'Measure a volume\'s replicas alone, all at once, and through fanfs'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "simulate" -d 'Simulate a cluster and its readers, and compare fanfs with simpler policies'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "demo" -d 'Create rate-limited replicas, and read a file through 1, 2 and all of them'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "generate" -d 'Write man pages, shell completions, the configuration\'s schema, systemd units'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -s o -l output -d 'Write to FILE instead of standard output' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l name -d 'The volume\'s name [default: the name of FILE, or else of the exported directory]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l mode -d 'How the replicas relate [default: guessed from the mounts]' -r -f -a "shared\t'One file system, seen through several mounts'
copies\t'Independent trees with the same content'"
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l force -d 'Overwrite FILE'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l json -d 'Print JSON: the guesses, their evidence and the text of the file'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s o -d 'Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev, keeper, log=FILE; mount(8)\'s own, such as ro, noauto, _netdev and x-systemd.*, are accepted' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l log -d 'Log to FILE [default: a file in the run-time directory, named after MOUNTPOINT]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground, and log to standard error; SIGTERM and SIGINT unmount'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l ready -d 'Report on standard output whether the start succeeded, then detach'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l sloppy -d 'Ignore unknown mount options'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l kept -d 'A keeper started this process, and sends its instructions on standard input'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l successor -d 'A daemon started this process, and hands its mount over on standard input'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand umount" -s l -l lazy -d 'Detach the mount at once; open files stay readable until they are closed'
complete -c fanfs -n "__fish_fanfs_using_subcommand umount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand unmount" -s l -l lazy -d 'Detach the mount at once; open files stay readable until they are closed'
complete -c fanfs -n "__fish_fanfs_using_subcommand unmount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand reload" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand upgrade" -l program -d 'The fanfs program to switch to [default: this one]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand upgrade" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand check" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand check" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l file -d 'The file to read: relative to the replicas\' roots, or a path below the volume\'s mount point or a replica [default: the one with the most data among those found quickly]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l seconds -d 'The duration of each step of the measurement, seconds' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l deadline -d 'The longest wait for a replica\'s answer [default: 5s]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l measure -d 'Also read the replicas, each alone and then all at once'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l write -d 'Create and remove a file on each replica, to read its server\'s clock'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -l json -d 'Print JSON: one object if VOLUME is named, else an array'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -l check -d 'For monitoring: print one line and fail if a replica is out of service, a keeper has died or a daemon does not answer; print nothing if all is well'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -s d -l interval -d 'Refresh interval, 200ms to 1min; rates are means over this time' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -l once -d 'Print one interval as text and exit; this is the default if standard output is not a terminal'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -l json -d 'Print one interval as JSON and exit'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -l volume -d 'Explain a file of this volume, which need not be mounted; bandwidths are assumed then' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -l json -d 'Print JSON, with every chunk'
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -s o -l output -d 'Record to this new file, with mode 0600, instead of showing the reads: one line of JSON for each read and each segment; `fanfs simulate --trace` replays it' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l duration -d 'Stop after this time [default: until Ctrl-C]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l reads -d 'Stop after this number of reads' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l force -d 'Overwrite FILE if it exists'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l json -d 'Print JSON, in the format of a recording'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l segments -d 'Also show segments, including readahead and failed attempts'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l sample -d 'The share of each file\'s blocks to compare, besides the first and the last' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l seed -d 'Selects the blocks of the sample; the same seed selects the same blocks [default: random]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l state -d 'Save the progress in FILE, and resume from it' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l rate -d 'Limit the rate of reading from all replicas together' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l jobs -d 'Number of files to compare at a time, and of blocks to read from each replica at a time' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l deadline -d 'The longest wait for one call on a replica [default: the volume\'s `attempt_deadline`, and `deadline` to list a directory]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l ignore -d 'Differences to ignore: mtime, ctime, inode, mode, owner' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l full -d 'Compare every byte'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l xattrs -d 'Also compare the extended attributes `user.*`'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l json -d 'Print one JSON object, at the end'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l file -d 'The file to read: relative to the volume\'s root, or a path below its mount point or a replica [default: the one with the most data among the first 20,000 entries]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l make -d 'Create a file of this size on the write replica, and remove it at the end' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l seconds -d 'The longest duration of a pass, seconds [default: 3]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l rounds -d 'The number of rounds; figures are medians of them [default: 3]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l block -d 'The request size of a sequential reader' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l random-block -d 'The request size of a random reader' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l readers -d 'The number of readers of the random and the parallel load [default: 4, or one for each replica if there are more]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l seed -d 'Selects the random blocks' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l deadline -d 'The longest wait for one call on a replica' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l report -d 'Write an HTML report with plots' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l fio -d 'Write a fio job for each pass, and a script that runs all of them' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l quick -d 'One round of passes of 1 s: about 20 seconds for three replicas'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l run-fio -d 'Also run these fio jobs, and show their results next to fanfs\'s own'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l trace -d 'Replay the readers of a recording of `fanfs trace --output`, instead of the scenario\'s' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l seed -d 'Use this seed instead of the scenario\'s' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l replicas -d 'How many replicas to create' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l rate -d 'The bandwidth of each replica' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l size -d 'The size of the file' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l dir -d 'The directory for the file and the mount point during the demo [default: $TMPDIR or /tmp]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "man" -d 'Write the man pages into DIR/man1, DIR/man5 and DIR/man8'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "completions" -d 'Print the completions for a shell'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "schema" -d 'Print the JSON schema of a volume\'s configuration'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "units" -d 'Print a .mount and an .automount unit for systemd, or write them into a directory'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from man" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from completions" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -s o -d 'Mount options, comma-separated' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -l output -d 'Write the units into DIR instead of standard output' -r -f -a "(__fish_complete_directories)"
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -l force -d 'Overwrite existing units that differ'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -s h -l help -d 'Print help'
