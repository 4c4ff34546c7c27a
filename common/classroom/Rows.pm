# Rows.pm - runs the stages' programs and reads the rows they print. For compare.pl and sweep.pl.
#
#     my $run = measure($program, '--seqlen', 512);
#         $run->{rows}     what --json printed: hashes, in order
#         $run->{code}     the exit code: 0 fine, 1 a mismatch, 2 it cannot run here; or 'signal 11'
#         $run->{reason}   the last line on stderr, without the stage's name
package Rows;
use strict;
use warnings;
use utf8;
use Exporter qw(import);
use File::Temp qw(tempdir);
use JSON::PP;
our @EXPORT = qw(stage_of variants_of measure own_rows problem_of show_progress three_digits time_text bytes_text);

my $scratch = tempdir(CLEANUP => 1);
my $json = JSON::PP->new->utf8;

# build/cpu/04_fa2/04_fa2 is the program of 04_fa2.
sub stage_of { return $_[0] =~ s{.*/}{}r }

# The variants' names, in teaching order, as --help lists them; of 00_naive itself, 00_naive.
sub variants_of {
    my ($program) = @_;
    my ($list) = capture($program, '--help')->{out} =~ /^variants\n(.*)/ms or die "$program: --help names no variants\n";
    my @names = $list =~ /^  (\w+) /mg;
    return @names > 1 ? grep { $_ ne '00_naive' } @names : @names;
}

sub measure {
    my ($program, @options) = @_;
    my $run = capture($program, '--json', @options);
    $run->{rows} = [map { eval { $json->decode($_) } // () } split /\n/, $run->{out}];
    my $stage = stage_of($program);
    my ($last) = $run->{err} =~ /([^\n]*)\n*\z/;
    $run->{reason} = $last =~ s/^\Q$stage\E: //r;
    return $run;
}

# The rows about the stage's own variants: not the reference it runs, nor the forward pass that a backward starts from.
sub own_rows {
    my ($run, $stage) = @_;
    return grep { $_->{variant} eq $stage || $_->{variant} =~ m{^\Q$stage\E/} } @{$run->{rows}};
}

sub capture {
    my (@command) = @_;
    my $child = fork() // die "fork: $!\n";
    if (!$child) {
        open(STDOUT, '>', "$scratch/out") && open(STDERR, '>', "$scratch/err") && exec(@command);
        print STDERR "$command[0]: $!\n";
        require POSIX;
        POSIX::_exit(127);
    }
    waitpid($child, 0);
    my ($signal, $code) = ($? & 127, $? >> 8);
    exit 130 if $signal == 2; # Ctrl-C was meant for us, too
    my %run = (code => $signal ? "signal $signal" : $code);
    for my $stream ('out', 'err') {
        open(my $file, '<', "$scratch/$stream") or die "$scratch/$stream: $!\n";
        local $/;
        $run{$stream} = <$file> // '';
    }
    return \%run;
}

# One line on a terminal, overwritten by the next and gone at the end (no text).
sub show_progress {
    my ($text) = @_;
    return if !-t STDERR;
    print STDERR "\r\e[K", defined $text ? $text : '';
}

# ---- words ----

sub problem_of {
    my ($row) = @_;
    return sprintf 'batch %d · heads %d/%d · seqlen %d×%d · head_dim %d · %s · %s',
        @$row{qw(batch heads kv_heads seqlen_q seqlen_k head_dim dtype)}, $row->{causal} ? 'causal' : 'full';
}

# Three digits or so, never an exponent.
sub three_digits {
    my ($x) = @_;
    return sprintf '%.*f', $x < 0.1 ? 4 : $x < 10 ? 2 : $x < 100 ? 1 : 0, $x;
}

sub time_text {
    my ($ms) = @_;
    return three_digits(1000 * $ms) . ' us' if $ms < 1;
    return $ms < 1000 ? three_digits($ms) . ' ms' : three_digits($ms / 1000) . ' s';
}

sub bytes_text {
    my ($bytes) = @_;
    return !$bytes ? '0' : $bytes < 2**20 ? three_digits($bytes / 2**10) . ' KiB'
        : $bytes < 2**30 ? three_digits($bytes / 2**20) . ' MiB' : three_digits($bytes / 2**30) . ' GiB';
}

1;
