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
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "init" -d 'Write a volume\'s configuration for mounts that there are, or list such mounts'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "mount" -d 'Mount a volume; returns when the mount answers'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "umount" -d 'Unmount a volume and wait for its daemon to end'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "unmount" -d 'Unmount a volume and wait for its daemon to end'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "reload" -d 'Go on with a mounted volume\'s configuration as it is now; nothing that is open is lost'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "upgrade" -d 'Have a mounted volume served by this program from now on; nothing that is open is lost'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "check" -d 'Validate a volume\'s configuration and look at its replicas'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "doctor" -d 'Say what holds reads back, in the order of what it costs, and what mends it'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "status" -d 'Show what mounted volumes and their replicas are doing'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "top" -d 'Watch a mounted volume at work: replicas, files, readers'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "explain" -d 'Show where a file\'s chunks are, what rate to expect, and what would improve it'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "trace" -d 'Show what becomes of each read: its segments, their replicas, how long it took'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "verify" -d 'Compare a volume\'s replicas with each other, and list what differs'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "bench" -d 'Measure what the replicas give, alone, all at once and through fanfs'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "simulate" -d 'Simulate a cluster and its readers, and compare fanfs with simpler policies'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "demo" -d 'Make rate-limited replicas, mount them and read one file through one, two and all of them'
complete -c fanfs -n "__fish_fanfs_needs_command" -f -a "generate" -d 'Write manual pages, shell completions, the volume file\'s schema, or units for systemd'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -s o -l output -d 'Write to FILE instead of standard output' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l name -d 'The volume\'s name [default: that of FILE, or of what is exported]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l mode -d 'How the replicas relate [default: by what is seen]' -r -f -a "shared\t'One file system, seen through several mounts'
copies\t'Independent trees with the same content'"
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l force -d 'Overwrite FILE'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -l json -d 'Print JSON: what was seen and guessed, and the file\'s text'
complete -c fanfs -n "__fish_fanfs_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s o -d 'Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev, keeper, log=FILE; ro, noauto, _netdev, x-systemd.* and other standard ones are accepted' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l log -d 'Log to this file [default: MOUNTPOINT\'s name with .log in the run-time directory]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground and log to standard error; SIGTERM and SIGINT unmount'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l ready -d 'Say on standard output how starting went, then detach'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l sloppy -d 'Ignore options that are not known'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l kept -d 'Started by a keeper, which says on standard input what to do'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -l successor -d 'Started by a daemon, which hands its mount over by standard input'
complete -c fanfs -n "__fish_fanfs_using_subcommand mount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand umount" -s l -l lazy -d 'Detach at once, also while files are open; they stay readable until they are closed'
complete -c fanfs -n "__fish_fanfs_using_subcommand umount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand unmount" -s l -l lazy -d 'Detach at once, also while files are open; they stay readable until they are closed'
complete -c fanfs -n "__fish_fanfs_using_subcommand unmount" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand reload" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand upgrade" -l program -d 'The program that is to serve it [default: this one]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand upgrade" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand check" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand check" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l file -d 'The file to read, from the replicas\' roots or below the volume\'s mount point [default: the one with the most data that is found soon]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l seconds -d 'How long each step of the measurement takes, seconds' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l deadline -d 'How long a replica may take to answer [default: 5s]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l measure -d 'Read the replicas, each alone and all at once'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l write -d 'Make a file on each replica, and take it away, to see its server\'s clock'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -l json -d 'Print JSON: one object with VOLUME, else an array'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -l check -d 'For monitoring: print one line and fail where a replica is out of service, a keeper has died or a daemon does not answer; print nothing where all is well'
complete -c fanfs -n "__fish_fanfs_using_subcommand status" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -s d -l interval -d 'How often to look; rates are means over this time' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -l once -d 'Print it once, as text, after one interval; so it is where standard output is no terminal'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -l json -d 'Print it once, as JSON'
complete -c fanfs -n "__fish_fanfs_using_subcommand top" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -l volume -d 'Ask for a volume that is not mounted; rates are assumed then' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -l json -d 'Print JSON, with every chunk'
complete -c fanfs -n "__fish_fanfs_using_subcommand explain" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -s o -l output -d 'Record to this new file, which is its owner\'s alone, one line of JSON for each read and each segment, instead of showing them; `fanfs simulate --trace` replays it' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l duration -d 'End after this time [default: until Ctrl-C]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l reads -d 'End after so many reads' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l force -d 'Overwrite FILE'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l json -d 'Print JSON, as it is recorded'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -l segments -d 'Show segments as well, those read ahead and those that failed among them'
complete -c fanfs -n "__fish_fanfs_using_subcommand trace" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l sample -d 'The share of each file\'s blocks to compare besides the first and the last' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l seed -d 'Which blocks are looked at; the same number, the same blocks [default: at random]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l state -d 'Keep in FILE how far it has come, and go on from there' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l rate -d 'Most bytes a second to read, of all replicas together' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l jobs -d 'Files to compare at a time, and blocks to read at a time from each replica' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l deadline -d 'How long one call on a replica may take [default: the volume\'s `attempt_deadline`; to list a directory, `deadline`]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l ignore -d 'Differences that are none: mtime, ctime, inode, mode, owner' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l full -d 'Compare every byte'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l xattrs -d 'Compare extended attributes `user.*` as well'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -l json -d 'Print one JSON object, at the end'
complete -c fanfs -n "__fish_fanfs_using_subcommand verify" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l file -d 'The file to read, from the volume\'s root, or below its mount point or a replica\'s path [default: the one with the most data among the first 20,000 entries]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l make -d 'Make a file of this size on the write replica, and remove it afterwards' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l seconds -d 'The longest that one pass reads [default: 3s]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l rounds -d 'How often each pass is done; figures are medians [default: 3]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l block -d 'What a sequential reader asks for at a time' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l random-block -d 'What a random reader asks for at a time' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l readers -d 'Readers of the random and the parallel load [default: 4, or one for each replica]' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l seed -d 'Which random blocks are read' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l deadline -d 'How long a replica may take to answer one call' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l report -d 'Write a page with plots' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l fio -d 'Write each pass as a job for fio, and a script that runs them' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l quick -d 'About 20 seconds for three replicas: one round of passes of 1 s'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l run-fio -d 'Run these jobs as well, and show what fio measures beside it'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand bench" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l trace -d 'Have the readers of a recording read instead of the scenario\'s: what `fanfs trace --output` wrote' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l seed -d 'Use this seed instead of the scenario\'s' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand simulate" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l replicas -d 'How many replicas to make' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l rate -d 'What each replica delivers' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l size -d 'The size of the file that is read' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l dir -d 'Where to put the file and the mount point, for the time of the demo [default: $TMPDIR or /tmp]' -r -F
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -l json -d 'Print JSON instead of a table'
complete -c fanfs -n "__fish_fanfs_using_subcommand demo" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "man" -d 'Write the manual pages into DIR/man1, DIR/man5 and DIR/man8'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "completions" -d 'Print the completions of a shell'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "schema" -d 'Print the JSON schema of a volume file'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and not __fish_seen_subcommand_from man completions schema units" -f -a "units" -d 'Print a .mount and an .automount unit of systemd, or write them into a directory'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from man" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from completions" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -s o -d 'Mount options, comma-separated' -r
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -l output -d 'Write the files into this directory' -r -f -a "(__fish_complete_directories)"
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -l force -d 'Overwrite units that are there with another content'
complete -c fanfs -n "__fish_fanfs_using_subcommand generate; and __fish_seen_subcommand_from units" -s h -l help -d 'Print help'
