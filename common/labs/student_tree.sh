# student_tree.sh - a copy of the repository for students who are graded.                       (make student-tree DIR=course)
#
#     sh common/labs/student_tree.sh course             without the kernels of all labs
#     sh common/labs/student_tree.sh course 02 04       without those of these labs
#
# What is left out: the tests, which have the labs' solutions and the planted mistakes; solutions.md, the folded answers of the
# pages, and the answers that make exercise compares with; the teaching plan with its exam; the stages' kernels that solve a lab, and with them
# the lines of common/ladder.txt of their stages and of those that are linked with them; what was measured. 00_naive stays, because the
# judge needs it. A link to what is left out becomes plain text.
# Exit code: 0, or 2 and one line that says why.
name=student-tree
. common/classroom/tools.sh
to=$1
[ "$to" ] || stop 'DIR= is missing: choose a folder that does not exist yet, like DIR=course'
[ ! -e "$to" ] || stop "DIR=$to exists: choose a folder that does not"
shift
all=$(cd common/labs && ls -d */ | tr -d /)
labs=${*:-$all}
for lab in $labs; do
    [ -e "common/labs/$lab/lab.txt" ] || stop "N=$lab: choose from $(echo $all)"
done
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT || stop 'cannot create a temporary folder'
mkdir -p "$to" 2>/dev/null || stop "DIR=$to cannot be created"
cp -pR LICENSE Makefile README.md .gitignore common notes "$to/" && for stage in [0-9]*_*/; do
    mkdir "$to/$stage" && find "$stage" -maxdepth 1 -type f -exec cp -p {} "$to/$stage" \;
done || stop "$to cannot be written"

find LICENSE Makefile README.md common notes tests [0-9]*_* | sort >"$scratch/all"
cd "$to" || exit
rm -rf notes/solutions.md notes/teaching_plan.md notes/exercises/*.txt notes/results
for page in notes/*.md; do
    awk '/<details>/ {folded = 1} !folded {print} /<\/details>/ {folded = 0}' "$page" >page && mv page "$page"
done
for lab in $labs; do
    for stage in $(sed -n 's/^kernels  *//p' "common/labs/$lab/lab.txt"); do
        [ -d "$stage" ] || continue
        find "$stage" -name '*.cu*' ! -name 'naive_*' -exec rm {} \;
        rm -f "notes/$stage.html" # which shows the kernel
        awk -v stage="$stage" '$1 != stage && index($3, stage "/") == 0' common/ladder.txt >ladder && mv ladder common/ladder.txt
    done
done
find * | sort >"$scratch/copied"
comm -23 "$scratch/all" "$scratch/copied" >"$scratch/left_out"
find . -name '*.md' | while read -r page; do
    page=${page#./} folder=${page%"${page##*/}"}
    awk -v folder="$folder" -f common/labs/unlink.awk "$scratch/left_out" "$page" >"$scratch/page" && cp "$scratch/page" "$page"
done
echo "$to is the students' copy. It leaves out the tests, solutions, answers, the exam, and the kernels of" $labs
