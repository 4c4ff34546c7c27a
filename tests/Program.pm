# Program.pm - runs a stage's program and keeps what it said. The tests run from the repository's root.
#
#     my $run = run('01_tiled', '--seqlen', 64);     $run->{code}, $run->{out}, $run->{err}
#     of_the_host();                                  skips a script whose every question the host alone answers
#     stages(), kind_of('05_fa2_backward')            the stages in the order of common/ladder.txt; BACKWARD
#     in_read_only($folder, 'make x')                 what a line of shell says where nothing can be written, and its exit code
#     local $ENV{MEMORY_ROOT} = container($bytes);    a folder that tells programs of a container with so much memory
#     read_text($file), write_text($file, $text)      whole files, as bytes
#     new_stages()                                    those not in common/results/ladder.tsv yet: they may still be without a picture, say
package Program;
use strict;
use warnings;
use Exporter qw(import);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use Test::More;
our @EXPORT = qw(run of_the_host stages new_stages kind_of in_read_only container read_text write_text);

my $scratch = tempdir(CLEANUP => 1);
$ENV{LC_ALL} = 'C'; # what a test runs by itself reads and writes figures with a point

sub run {
    my ($stage, @arguments) = @_;
    my $child = fork() // die "fork: $!";
    if (!$child) {
        open(STDOUT, '>', "$scratch/out") && open(STDERR, '>', "$scratch/err") || die "$scratch: $!";
        exec("$stage/$stage", @arguments) or die "$stage/$stage: $! (make $stage)\n";
    }
    waitpid($child, 0);
    my %run = (code => $? & 127 ? "signal " . ($? & 127) : $? >> 8, arguments => "@arguments");
    for my $stream ('out', 'err') {
        open(my $file, '<:utf8', "$scratch/$stream") or die "$scratch/$stream: $!";
        local $/;
        $run{$stream} = <$file> // '';
    }
    return \%run;
}

# On a GPU each start of a program takes half a second, and the host's code is the same: there `make test-all` alone asks again.
sub of_the_host {
    plan skip_all => 'the CPU device has answered for the host' if ($ENV{TEST_DEVICE} // '') eq 'cuda' && !$ENV{TEST_ALL};
}

# Root may write anywhere, so it is not root who runs it.
sub in_read_only {
    my ($folder, $command) = @_;
    system('chmod', '-R', 'a+rX,a-w', $folder);
    my $child = open(my $said, '-|') // die "fork: $!";
    if (!$child) {
        open(STDERR, '>&', \*STDOUT);
        ($), $() = ('65534 65534', 65534), ($>, $<) = (65534, 65534) if $> == 0;
        chdir $folder && exec('sh', '-c', $command) or die "$folder: $!";
    }
    my $out = join '', <$said>;
    close $said;
    my $code = $? >> 8;
    system('chmod', '-R', 'u+w', $folder);
    return ($out, $code);
}

sub container {
    my ($bytes) = @_;
    my $folder = tempdir(CLEANUP => 1);
    make_path("$folder/proc/self", "$folder/sys/fs/cgroup");
    write_text("$folder/proc/self/cgroup", "0::/\n");
    write_text("$folder/sys/fs/cgroup/memory.max", "$bytes\n");
    return $folder;
}

sub read_text { open my $in, '<:raw', $_[0] or die "$_[0]: $!"; local $/; return <$in> // '' }
sub write_text { open my $out, '>:raw', $_[0] or die "$_[0]: $!"; print $out $_[1]; close $out or die "$_[0]: $!" }

open my $ladder, '<', 'common/ladder.txt' or die "common/ladder.txt: $!";
my @ladder = map { [split] } grep { /^\w/ } <$ladder>; # [name, builds on, links]
sub stages { return map { $_->[0] } @ladder }
sub new_stages {
    open my $course, '<', 'common/results/ladder.tsv' or die "common/results/ladder.tsv: $!";
    my $known = join '', <$course>;
    return grep { $known !~ /\t$_[\t\/]/ } stages();
}
sub kind_of {
    my ($stage) = @_;
    open my $main, '<', "$stage/main.c" or die "$stage/main.c: $!";
    return (map { /^ *\.kind = ([A-Z]+),/ } <$main>)[0];
}

1;
