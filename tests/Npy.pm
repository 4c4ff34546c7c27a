# Npy.pm - .npy files by hand, and attention of what is in them: what the programs' own reading, writing and arithmetic are held
# against.
#
#     write_bytes('q.npy', npy('<f4', [1, 2, 5, 64], \@values));
#     my ($type, $shape, $values) = read_npy('o.npy');                 ('<f2', '1,2,5,64', [...])
package Npy;
use strict;
use warnings;
use Exporter qw(import);
our @EXPORT = qw(npy read_npy attention write_bytes read_bytes);

sub write_bytes {
    my ($path, $bytes) = @_;
    open(my $file, '>:raw', $path) or die "$path: $!";
    print $file $bytes;
    close($file) or die "$path: $!";
}

sub read_bytes {
    my ($path) = @_;
    open(my $file, '<:raw', $path) or return undef;
    local $/;
    return <$file>;
}

# O and LSE as the definition says, as arrays. shape: [batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim]; lengths: of the keys,
# for each batch entry.
sub attention {
    my ($shape, $q, $k, $v, $scale, $causal, @lengths) = @_;
    my ($B, $H, $G, $SQ, $SK, $D) = @$shape;
    my (@o, @lse);
    for my $row (0 .. $B * $H * $SQ - 1) {
        my ($b, $h, $i) = (int($row / ($H * $SQ)), int($row / $SQ) % $H, $row % $SQ);
        my $last = ($lengths[$b] // $SK) - 1 - ($causal ? $SQ - 1 - $i : 0);
        my ($l, @sum) = (0, (0) x $D);
        for my $key (map { (($b * $G + int($h * $G / $H)) * $SK + $_) * $D } 0 .. $last) {
            my $s = 0;
            $s += $q->[$row * $D + $_] * $k->[$key + $_] for 0 .. $D - 1;
            $l += my $p = exp($scale * $s);
            $sum[$_] += $p * $v->[$key + $_] for 0 .. $D - 1;
        }
        push @lse, $l > 0 ? log($l) : -9**9**9;
        push @o, map { $l > 0 ? $_ / $l : 0 } @sum;
    }
    return (\@o, \@lse);
}

# A value that fp16 holds exactly, as its code.
sub fp16 {
    my ($value) = @_;
    return 0 if $value == 0;
    my ($sign, $exponent) = ($value < 0 ? 0x8000 : 0, 15);
    $value = abs $value;
    $value /= 2, $exponent++ while $value >= 2;
    $value *= 2, $exponent-- while $value < 1 && $exponent > 0;
    return $sign | $exponent << 10 | int(($value - 1) * 1024);
}

sub from_fp16 {
    my ($code) = @_;
    my ($exponent, $mantissa) = ($code >> 10 & 31, $code & 1023);
    my $value = $exponent ? (1 + $mantissa / 1024) * 2**($exponent - 15) : $mantissa / 1024 * 2**-14;
    return $code & 0x8000 ? -$value : $value;
}

my %pack = ('<f2' => sub { pack 'v*', map { fp16($_) } @_ }, '<f4' => sub { pack 'f<*', @_ }, '<f8' => sub { pack 'd<*', @_ });
my %unpack = ('<f2' => sub { map { from_fp16($_) } unpack 'v*', $_[0] }, '<f4' => sub { unpack 'f<*', $_[0] });

sub npy {
    my ($type, $shape, $values, $fortran) = @_;
    my $header = "{'descr': '$type', 'fortran_order': " . ($fortran ? 'True' : 'False') . ", 'shape': (" . join(', ', @$shape) . "), }";
    $header .= ' ' x (-(length($header) + 11) % 64) . "\n";
    return "\x93NUMPY\x01\x00" . pack('v', length $header) . $header . ($pack{$type} // $pack{'<f4'})->(@$values);
}

# Type, shape and values of a file that the program wrote.
sub read_npy {
    my ($path) = @_;
    my $bytes = read_bytes($path) // return ('missing', '', []);
    my ($magic, $length) = unpack 'a8v', $bytes;
    my $header = substr $bytes, 10, $length;
    my ($type) = $header =~ /'descr': '([^']*)'/;
    my ($shape) = $header =~ /'shape': \(([^)]*)\)/;
    return ('broken', '', []) unless $magic eq "\x93NUMPY\x01\x00" && $unpack{$type // ''} && $header =~ /'fortran_order': False/;
    $shape =~ s/\s//g;
    return ($type, $shape, [$unpack{$type}->(substr $bytes, 10 + $length)]);
}

1;
