# Scratch.pm - for tests that break the project on purpose: changes one file in a copy of the tree, builds, looks, and puts
# the file back. There are as many copies as cores, each with a process of its own.
#
#     in_copies('build/cpu', sub { my ($item) = @_; ...; return ['what was seen', 1], ['... and where', 0, 'why'] }, @items);
#     with_file($file, $text, sub { built('build/cpu/tests/compare') or ... });
#
# Results come out as TAP, in the order of the items. Only copies are ever changed.
package Scratch;
use strict;
use warnings;
use Cwd qw(getcwd);
use Exporter qw(import);
use File::Temp qw(tempdir);
use Storable qw(fd_retrieve store_fd);
use Test::More;
our @EXPORT = qw(in_copies from_copies with_file read_file write_file built);

my ($root, $build);

# Calls $try->($item) in a copy of the tree, for each item. It returns what shall be reported, lists of [name, good, diagnosis].
sub in_copies {
    my ($build, $try, @items) = @_;
    from_copies($build, $try, sub {
        for (@_) {
            my ($name, $good, $why) = @$_;
            ok($good, $name) or $why && diag($why);
        }
    }, @items);
    done_testing;
}

# The same, but hands what $try returns to $report, item by item.
sub from_copies {
    ($build, my ($try, $report, @items)) = @_;
    $root = getcwd;
    my $copies = $ENV{JOBS} || `getconf _NPROCESSORS_ONLN` + 0 || 1;
    my @from;
    for my $copy (0 .. $copies - 1) {
        pipe(my $reader, my $writer) or BAIL_OUT("pipe: $!");
        my $child = fork() // BAIL_OUT("fork: $!");
        if ($child) {
            push @from, $reader;
            next;
        }
        my $directory = tempdir(CLEANUP => 1);
        chmod 0755, $directory; # tests that run a program as a user who is not root enter it
        # Headers and objects travel with their times, so that make compiles only what a change touched.
        system("cp -a \$(ls | grep -vx build) '$directory' && mkdir -p '$directory/build' && cp -a '$build' '$directory/build/'")
            == 0 or die "cannot copy the tree to $directory";
        chdir $directory or die "$directory: $!";
        for (my $i = $copy; $i < @items; $i += $copies) {
            store_fd([$try->($items[$i])], $writer);
            $writer->flush;
        }
        chdir $root;
        exit 0;
    }
    for my $i (0 .. $#items) {
        my $results = eval { fd_retrieve($from[$i % $copies]) } or BAIL_OUT("copy " . $i % $copies . " of the tree has died");
        $report->(@$results);
    }
    wait for @from;
}

# Writes $text to the file, calls $look, and puts file and build back as they were, times included: what was compiled from the
# changed file must not be taken for the original's. Returns what $look does.
sub with_file {
    my ($file, $text, $look) = @_;
    rename $file, "$file.kept" or die "$file: $!";
    write_file($file, $text);
    my @results = $look->();
    for (split /\n/, `find '$build' -type f -newer '$file'`) { # written since
        unlink or die "$_: $!";
        system('cp', '-p', "$root/$_", $_) == 0 or die "cannot restore $_" if -e "$root/$_";
    }
    rename "$file.kept", $file or die "$file: $!";
    return @results;
}

# Builds a target for the CPU device; variables as make takes them. Returns whether it did, and the compiler's words. Flags
# and commit may be others than those of the build that was copied: what nobody changed is not compiled again.
sub built {
    my ($target, @variables) = @_;
    my ($flags, $commit) = glob "$build/{flags,commit}-*";
    my $log = `make --no-print-directory DEVICE=cpu IS_FLAGS=$flags IS_COMMIT=$commit WARN=-w COMMIT=scratch @variables $target 2>&1`;
    return ($? == 0, $log);
}

sub read_file { open my $in, '<', $_[0] or die "$_[0]: $!"; local $/; return scalar <$in> }
sub write_file { open my $out, '>', $_[0] or die "$_[0]: $!"; print $out $_[1]; close $out or die "$_[0]: $!" }

1;
