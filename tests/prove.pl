#!/usr/bin/env perl
# prove.pl - runs tests with perl's prove. On a terminal prove itself shows what goes on; elsewhere it prints a line only when a test
# has ended, and some take minutes. So when nothing has been printed for 15 seconds (PATIENCE), this says which tests have not ended yet.
#
#     perl tests/prove.pl OPTION... TEST...         options and exit code are prove's
use strict;
use warnings;
$| = 1;

my @tests = grep { -f } @ARGV;
my %is_left = map { $_ => 1 } @tests;
print "running ", scalar @tests, " tests\n";
exec 'prove', @ARGV if -t STDOUT;

open my $prove, '-|', 'prove', @ARGV or die "prove: $!\n";
my ($begin, $line) = (time, '');
while (1) {
    vec(my $readable = '', fileno $prove, 1) = 1;
    if (select $readable, undef, undef, $ENV{PATIENCE} // 15) {
        sysread $prove, my $said, 4096 or last;
        print $said;
        $line .= $said;
        delete $is_left{$1} while $line =~ s/\A(\S*)(.*)\n//; # "tests/make.t ....... ok"
    } else {
        my @left = grep { $is_left{$_} } @tests;
        my $which = @left > 8 ? @left . ' tests have not ended yet' : "still to end: @left";
        print $line eq '' ? '' : "\n", '    after ', time - $begin, " s: $which\n";
    }
}
close $prove;
exit($? >> 8 || $? & 127);
